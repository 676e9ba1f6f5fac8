//! `laneway ctl cluster`: nodes and their replicas.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Subcommand;
use laneway_client::wire::{
    ClusterChangeResponse, ClusterGroup, ClusterMember, ClusterNode, ClusterResponse,
};
use laneway_client::{Client, ClientError, ClusterChange};

use super::table::{Table, masked};
use super::{known_id, shown};

/// How long adding a node is repeated: it first gets a copy of the data, which the broker waits for only so long.
const ADD_WAIT: Duration = Duration::from_secs(3600);

/// How long another change is repeated when something else is in its way.
const CHANGE_WAIT: Duration = Duration::from_secs(30);

/// Longest wait for one answer: a change goes through the groups one after the other.
const ANSWER_WAIT: Duration = Duration::from_secs(3600);

/// Before a change is repeated.
const REPEAT_PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, Subcommand)]
pub(super) enum ClusterCommand {
    /// Shows nodes, groups and replicas as the asked node sees them.
    Status,
    /// Gives a node a replica of every partition, and a vote in each when it has caught up. Waits for that.
    ///
    /// The node must be in the cluster file of all nodes, and run. A repeat, also of one that was cut short, does what is left
    /// to do.
    AddNode {
        /// Its number.
        #[arg(value_name = "NODE", value_parser = number())]
        node: u16,
    },
    /// Takes a node, which may be dead, out of the cluster.
    ///
    /// Refused when the others could not decide anything without it. A repeat does what is left to do.
    RemoveNode {
        /// Its number.
        #[arg(value_name = "NODE", value_parser = number())]
        node: u16,
    },
    /// Lets a node lead partitions, such as before another one is stopped.
    TransferLeader {
        /// Only this one: its number, or `catalog` [default: all, and the catalog].
        #[arg(long, value_name = "P")]
        partition: Option<String>,
        /// Number of the node that is to lead.
        #[arg(long, value_name = "NODE", value_parser = number())]
        to: u16,
    },
}

fn number() -> clap::builder::RangedI64ValueParser<u16> {
    clap::value_parser!(u16).range(1..)
}

pub(super) async fn answer(client: &Client, command: &ClusterCommand, json: bool) -> Result<String> {
    let change = match command {
        ClusterCommand::Status => return shown(json, &client.cluster().await?, status),
        ClusterCommand::AddNode { node } => ClusterChange::AddNode(*node),
        ClusterCommand::RemoveNode { node } => ClusterChange::RemoveNode(*node),
        ClusterCommand::TransferLeader { partition, to } => {
            ClusterChange::TransferLeader(partition.clone(), *to)
        }
    };
    // A node that hangs shows here, and not only after the hour that a change may take.
    let before = client.cluster().await?;
    let patient = client.clone().with_answer_wait(ANSWER_WAIT);
    let (mut done, repeated) = until_done(&patient, &change).await?;
    if repeated {
        add_earlier(&mut done, &change, &before);
    }
    let mut text = shown(json, &done, |done| changed(&change, done))?;
    if !json && !done.changed.is_empty() && !matches!(change, ClusterChange::TransferLeader(..)) {
        // The change is done, whatever becomes of this question.
        let after = client.cluster().await.ok();
        text.push_str(&after.as_ref().and_then(may_fail).unwrap_or_default());
    }
    Ok(text)
}

/// The answer names what the last attempt changed: adds what the attempts before it did.
fn add_earlier(done: &mut ClusterChangeResponse, change: &ClusterChange, before: &ClusterResponse) {
    let changed = std::mem::take(&mut done.changed);
    let groups = before.groups.iter();
    let not_so = groups.filter(|group| changed.contains(&group.partition) || !is_so(group, change, before));
    done.changed = not_so.map(|group| group.partition.clone()).collect();
    if !done.changed.is_empty() {
        done.note = None;
    }
}

/// Whether nothing is left to do in the group.
fn is_so(group: &ClusterGroup, change: &ClusterChange, cluster: &ClusterResponse) -> bool {
    let mut members = group.members.iter();
    match change {
        ClusterChange::AddNode(node) => {
            members.any(|member| member.node == *node && member.voter && !is_old(member, &cluster.nodes))
        }
        ClusterChange::RemoveNode(node) => !members.any(|member| member.node == *node),
        ClusterChange::TransferLeader(only, node) => {
            only.as_ref().is_some_and(|only| *only != group.partition) || group.leader == Some(*node)
        }
    }
}

/// What the cluster survives now.
fn may_fail(cluster: &ClusterResponse) -> Option<String> {
    let voters = |group: &ClusterGroup| group.members.iter().filter(|member| member.voter).count();
    let fewest = cluster
        .groups
        .iter()
        .map(voters)
        .min()
        .filter(|voters| *voters > 0)?;
    Some(match (fewest, (fewest - 1) / 2) {
        (1, _) => "now 1 node votes: it may not fail\n".to_owned(),
        (voters, 0) => format!("now {voters} nodes vote: none of them may fail\n"),
        (voters, failing) => format!("now {voters} nodes vote: {failing} of them may fail\n"),
    })
}

/// Repeats the change while the broker says that it only takes time, and tells whether it did. What is waited for goes to
/// standard error.
async fn until_done(client: &Client, change: &ClusterChange) -> Result<(ClusterChangeResponse, bool)> {
    let wait = match change {
        ClusterChange::AddNode(_) => ADD_WAIT,
        ClusterChange::RemoveNode(_) | ClusterChange::TransferLeader(..) => CHANGE_WAIT,
    };
    let deadline = Instant::now() + wait;
    let (mut told, mut repeated) = (String::new(), false);
    loop {
        match client.change_cluster(change).await {
            Err(ClientError::Refused(refusal)) if refusal.code == "retry" && Instant::now() < deadline => {
                if told != refusal.message {
                    // Nobody need listen.
                    let _ = writeln!(io::stderr(), "waiting: {}", masked(&refusal.message));
                    told = refusal.message;
                }
                repeated = true;
                tokio::time::sleep(REPEAT_PAUSE).await;
            }
            outcome => return Ok((outcome?, repeated)),
        }
    }
}

fn status(cluster: &ClusterResponse) -> String {
    let ClusterResponse {
        cluster: name,
        cluster_id,
        node,
        nodes,
        groups,
    } = cluster;
    let cluster_id = known_id(cluster_id);
    let mut text = format!("cluster {name} ({cluster_id}) as node {node} sees it\n\n");
    let mut table = Table::new(["NODE", "ADDRESS", "CONNECTED", "GENERATION", "LEADS", "VOTES IN"]);
    for node in nodes {
        let count =
            |counts: &dyn Fn(&ClusterGroup) -> bool| groups.iter().filter(|group| counts(group)).count();
        let votes = |group: &ClusterGroup| {
            let mut members = group.members.iter();
            members.any(|member| member.node == node.node && member.voter && !is_old(member, nodes))
        };
        table.row([
            node.node.to_string(),
            or_dash(node.address.as_ref()),
            if node.connected { "yes" } else { "no" }.to_owned(),
            or_dash(node.generation.as_ref()),
            count(&|group| group.leader == Some(node.node)).to_string(),
            format!("{} of {}", count(&votes), groups.len()),
        ]);
    }
    let _ = write!(text, "{table}");
    for node in nodes {
        if let Some(trouble) = &node.trouble {
            let _ = writeln!(text, "node {}: {}", node.node, masked(trouble));
        }
    }
    text + "\n" + &members(groups, nodes)
}

/// Whether the member is data that the node no longer has: another generation runs there now.
fn is_old(member: &ClusterMember, nodes: &[ClusterNode]) -> bool {
    let mut nodes = nodes.iter();
    let node = nodes.find(|node| node.node == member.node);
    let now = node.and_then(|node| node.generation.as_ref());
    now.is_some_and(|now| *now != member.generation)
}

fn members(groups: &[ClusterGroup], nodes: &[ClusterNode]) -> String {
    let mut table = Table::new(["PARTITION", "TERM", "LEADER", "REPLICAS"]);
    for group in groups {
        let members = group.members.iter();
        let members: Vec<String> = members
            .map(|one| member(one, is_old(one, nodes), group.leader.is_some()))
            .collect();
        table.whole_row([
            group.partition.clone(),
            group.term.to_string(),
            or_dash(group.leader.as_ref()),
            members.join(", "),
        ]);
    }
    table.to_string()
}

/// Such as `1 at 512`, `3 at 17 (learner)`, `2 at ?` when the leader hears nothing of it, or `2 (lost data)`.
fn member(member: &ClusterMember, old: bool, led: bool) -> String {
    let mut text = member.node.to_string();
    match member.matched {
        Some(matched) => drop(write!(text, " at {matched}")),
        None if led && !old => text.push_str(" at ?"),
        None => {}
    }
    if old {
        text.push_str(" (lost data)");
    } else if !member.voter {
        text.push_str(" (learner)");
    }
    text
}

fn changed(change: &ClusterChange, done: &ClusterChangeResponse) -> String {
    if done.changed.is_empty() {
        let note = done.note.as_deref().unwrap_or("it is so already");
        return format!("nothing to do: {}\n", masked(note));
    }
    let what = match change {
        ClusterChange::AddNode(node) => format!("node {node} votes now in"),
        ClusterChange::RemoveNode(node) => format!("node {node} is no longer in"),
        ClusterChange::TransferLeader(_, node) => format!("node {node} leads now"),
    };
    format!("{what}: {}\n", done.changed.join(", "))
}

fn or_dash(value: Option<&impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster() -> ClusterResponse {
        let member = |node, voter, matched| ClusterMember {
            node,
            generation: format!("{node:012x}"),
            voter,
            matched,
        };
        let lost = |node| ClusterMember {
            generation: "0000000000ff".to_owned(),
            ..member(node, true, None)
        };
        let group = |partition: &str, leader, members| ClusterGroup {
            partition: partition.to_owned(),
            term: 3,
            leader,
            members,
        };
        let node = |node, connected| ClusterNode {
            node,
            address: (node < 3).then(|| format!("127.0.0.1:763{node}")),
            connected,
            generation: connected.then(|| format!("{node:012x}")),
            trouble: (!connected).then(|| "cannot be reached".to_owned()),
        };
        ClusterResponse {
            cluster: "three".to_owned(),
            cluster_id: "00ab".to_owned(),
            node: 1,
            nodes: vec![node(1, true), node(2, true), node(3, false)],
            groups: vec![
                group(
                    "catalog",
                    Some(1),
                    vec![
                        member(1, true, Some(9)),
                        member(2, true, Some(8)),
                        member(3, false, None),
                    ],
                ),
                group(
                    "0",
                    None,
                    vec![member(1, true, None), lost(2), member(2, false, Some(4))],
                ),
            ],
        }
    }

    #[test]
    fn status_shows_nodes_and_replicas() {
        let text = status(&cluster());
        let wanted = "\
cluster three (00ab) as node 1 sees it

NODE  ADDRESS         CONNECTED  GENERATION    LEADS  VOTES IN
1     127.0.0.1:7631  yes        000000000001  1      2 of 2
2     127.0.0.1:7632  yes        000000000002  0      1 of 2
3     -               no         -             0      0 of 2
node 3: cannot be reached

PARTITION  TERM  LEADER  REPLICAS
catalog    3     1       1 at 9, 2 at 8, 3 at ? (learner)
0          3     -       1, 2 (lost data), 2 at 4 (learner)
";
        assert_eq!(text, wanted);
    }

    #[test]
    fn many_replicas_are_shown_whole() {
        let mut cluster = cluster();
        cluster.cluster_id = "0000000000000000".to_owned();
        let one = cluster.groups[0].members[0].clone();
        cluster.groups[0].members = vec![one; 20];
        let text = status(&cluster);
        assert_eq!(text.matches("1 at 9").count(), 20);
        assert!(text.starts_with("cluster three (no id yet: not founded) as"));
    }

    #[test]
    fn repeated_change_names_all_groups_that_it_changed() {
        let check = |change, last: &[&str], wanted: &[&str]| {
            let mut done = ClusterChangeResponse {
                changed: last.iter().map(ToString::to_string).collect(),
                note: None,
            };
            add_earlier(&mut done, &change, &cluster());
            assert_eq!(done.changed, wanted, "{change:?}");
        };
        check(ClusterChange::AddNode(3), &["catalog"], &["catalog", "0"]);
        check(ClusterChange::AddNode(2), &[], &["0"]);
        check(ClusterChange::RemoveNode(3), &["catalog"], &["catalog"]);
        check(ClusterChange::TransferLeader(None, 1), &[], &["0"]);
        check(
            ClusterChange::TransferLeader(Some("catalog".to_owned()), 1),
            &[],
            &[],
        );
    }

    #[test]
    fn what_may_fail_is_told() {
        let check = |voters: u16, wanted: &str| {
            let mut cluster = cluster();
            let one = cluster.groups[0].members[0].clone();
            for group in &mut cluster.groups {
                group.members = vec![one.clone(); usize::from(voters)];
            }
            assert_eq!(may_fail(&cluster).unwrap_or_default(), wanted);
        };
        check(0, "");
        check(1, "now 1 node votes: it may not fail\n");
        check(2, "now 2 nodes vote: none of them may fail\n");
        check(5, "now 5 nodes vote: 2 of them may fail\n");
    }

    #[test]
    fn changes_are_told() {
        let check = |change, groups: &[&str], wanted: &str| {
            let done = ClusterChangeResponse {
                changed: groups.iter().map(ToString::to_string).collect(),
                note: groups.is_empty().then(|| "it was so\u{7}".to_owned()),
            };
            assert_eq!(changed(&change, &done), wanted);
        };
        check(
            ClusterChange::AddNode(3),
            &["0", "1"],
            "node 3 votes now in: 0, 1\n",
        );
        check(ClusterChange::AddNode(3), &[], "nothing to do: it was so�\n");
        check(
            ClusterChange::RemoveNode(3),
            &["catalog"],
            "node 3 is no longer in: catalog\n",
        );
    }
}
