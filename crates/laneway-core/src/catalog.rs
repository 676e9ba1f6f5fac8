//! The machine of the catalog: which queues and consumer groups there are, in one order for the whole cluster.
//!
//! Every change takes the next [`CatalogVersion`]; partitions take the changes in that order, as
//! [`CatalogMachine::changes_since`] lists them.
//!
//! **Invariants.** A name has at most one live queue. A queue's id is the version at its birth, so it is never reused.
//! Each queue, group and tombstone has a version of its own.

mod checkpoint;
mod patch;
#[cfg(test)]
mod tests;

pub use checkpoint::{CatalogLoadError, CatalogMetaRow, CatalogRow, CatalogRowKey, CatalogTombstoneRow};
pub use patch::{Patch, SettingsPatch};

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::command::{DeleteQueue, PutQueue};
use crate::ids::{CatalogVersion, QueueId};
use crate::settings::{GroupRow, GroupStart, QueueRow, QueueSettings};
use crate::time::{Stamps, WallTime};
use crate::tracker::Tracker;
use checkpoint::CatalogTables;

/// One entry of the catalog's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CatalogEntry {
    /// The leader's two stamps, clamped like those of a partition.
    pub stamps: Stamps,
    /// Applied in order.
    pub commands: Vec<CatalogCommand>,
}

/// A command. Each variant has a number of its own ([`CatalogCommand::tag`]) that is never reused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(
    clippy::large_enum_variant,
    reason = "catalog commands are few and short-lived"
)]
pub enum CatalogCommand {
    /// 1: makes a queue with implicit settings, or lists one that is there unlisted. Idempotent.
    CreateQueue {
        /// Its name.
        name: String,
        /// False for a queue that only a pop has named.
        listed: bool,
    },
    /// 2: sets options, making or listing the queue. Idempotent.
    Configure {
        /// The queue's name.
        name: String,
        /// The options.
        patch: SettingsPatch,
        /// Kept options keep the stored value; else, and for a name that was not listed, they get the default.
        merge: bool,
    },
    /// 3
    DeleteQueue {
        /// The queue's name.
        name: String,
    },
    /// 4: registers a consumer group, making the queue unlisted if it is unknown. The first registration wins.
    RegisterGroup {
        /// The queue's name.
        queue: String,
        /// The group's name.
        group: String,
        /// Where it starts.
        start: GroupStart,
    },
    /// 5: every partition has all changes up to this one, so tombstones up to it have done their work.
    ForgetTombstones {
        /// The version.
        up_to: CatalogVersion,
    },
    /// 6: only the stamps matter.
    Tick,
}

impl CatalogCommand {
    /// The persisted number of the variant.
    pub fn tag(&self) -> u8 {
        match self {
            Self::CreateQueue { .. } => 1,
            Self::Configure { .. } => 2,
            Self::DeleteQueue { .. } => 3,
            Self::RegisterGroup { .. } => 4,
            Self::ForgetTombstones { .. } => 5,
            Self::Tick => 6,
        }
    }
}

/// A command's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CatalogReply {
    /// Of a creation or configuration.
    Queue {
        /// The row as it is now.
        row: QueueRow,
        /// Whether the command changed it.
        changed: bool,
    },
    /// Of a deletion.
    Deleted {
        /// A listed queue was there.
        existed: bool,
        /// The incarnation deleted, listed or not.
        id: Option<QueueId>,
    },
    /// Of a registration.
    Group {
        /// The queue's row.
        queue: QueueRow,
        /// The registration in force.
        group: GroupRow,
        /// Whether the command made it.
        created: bool,
    },
    /// Of the rest.
    Done,
    /// Nothing changed.
    Refused(CatalogRefusal),
}

/// Why a command changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CatalogRefusal {
    /// No room for another queue.
    QueuesFull,
    /// No room for another group on the queue.
    GroupsFull,
}

/// A change, as partitions take it. Rows are as they are now: a later change of the same row replaces an earlier one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CatalogChange {
    /// A queue was made or changed.
    PutQueue(PutQueue),
    /// A queue was deleted.
    DeleteQueue(DeleteQueue),
    /// A group was registered.
    RegisterGroup {
        /// The queue's row.
        queue: QueueRow,
        /// The registration.
        group: GroupRow,
    },
}

impl CatalogChange {
    /// A partition that took it has all changes up to this version.
    pub fn version(&self) -> CatalogVersion {
        match self {
            Self::PutQueue(put) => put.version,
            Self::DeleteQueue(delete) => delete.version,
            Self::RegisterGroup { group, .. } => group.version,
        }
    }
}

/// Bounds of the catalog. They shape replies, so every replica must have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CatalogLimits {
    /// Queues, unlisted ones included.
    pub queues_max: u32,
    /// Groups of one queue: each costs every lane of the queue about 60 bytes.
    pub groups_per_queue_max: u32,
}

impl Default for CatalogLimits {
    fn default() -> Self {
        Self {
            queues_max: 100_000,
            groups_per_queue_max: 1_000,
        }
    }
}

/// What a version was given to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Changed {
    Queue(QueueId),
    Group(QueueId),
    Tombstone(QueueId),
}

/// The pure machine of the catalog.
#[derive(Debug)]
pub struct CatalogMachine {
    limits: CatalogLimits,
    tables: CatalogTables,
    /// Derived: live queues by name.
    names: BTreeMap<String, QueueId>,
    /// Derived: groups by queue and name.
    groups: BTreeMap<QueueId, BTreeMap<String, CatalogVersion>>,
    /// Derived: what is to be seen of each change.
    changes: BTreeMap<CatalogVersion, Changed>,
    tracker: Tracker<CatalogRowKey, CatalogRow>,
    loading: bool,
    misfit: Option<CatalogRowKey>,
}

impl CatalogMachine {
    /// A machine without history.
    pub fn new(limits: CatalogLimits) -> Self {
        Self {
            limits,
            tables: CatalogTables::default(),
            names: BTreeMap::new(),
            groups: BTreeMap::new(),
            changes: BTreeMap::new(),
            tracker: Tracker::default(),
            loading: false,
            misfit: None,
        }
    }

    /// Head of an entry: lease time becomes max(last, given), wall time max(last + 1 µs, given).
    pub fn begin_entry(&mut self, stamps: Stamps) {
        self.touch(CatalogRowKey::Meta);
        let last = &mut self.tables.meta.stamps;
        *last = Stamps {
            lease: last.lease.max(stamps.lease),
            wall: WallTime(last.wall.0.saturating_add(1)).max(stamps.wall),
        };
    }

    /// Applies one command of the entry.
    pub fn apply(&mut self, command: CatalogCommand) -> CatalogReply {
        match command {
            CatalogCommand::CreateQueue { name, listed } => self.create_queue(&name, listed),
            CatalogCommand::Configure { name, patch, merge } => self.configure(&name, &patch, merge),
            CatalogCommand::DeleteQueue { name } => self.delete_queue(&name),
            CatalogCommand::RegisterGroup { queue, group, start } => self.register(&queue, &group, start),
            CatalogCommand::ForgetTombstones { up_to } => self.forget_tombstones(up_to),
            CatalogCommand::Tick => CatalogReply::Done,
        }
    }

    /// Stamps of the last entry.
    pub fn stamps(&self) -> Stamps {
        self.tables.meta.stamps
    }

    /// Version of the last change.
    pub fn version(&self) -> CatalogVersion {
        self.tables.meta.version
    }

    /// A live queue by name, listed or not.
    pub fn queue(&self, name: &str) -> Option<&QueueRow> {
        self.queue_by_id(*self.names.get(name)?)
    }

    /// A live queue by incarnation.
    pub fn queue_by_id(&self, id: QueueId) -> Option<&QueueRow> {
        self.tables.queues.get(&id)
    }

    /// Live queues, listed or not, by name.
    pub fn queues(&self) -> impl Iterator<Item = &QueueRow> + '_ {
        self.names.values().map(|id| &self.tables.queues[id])
    }

    /// A registration on a live queue.
    pub fn group(&self, queue: QueueId, group: &str) -> Option<&GroupRow> {
        let version = self.groups.get(&queue)?.get(group)?;
        self.tables.groups.get(&(queue, *version))
    }

    /// Registrations on a live queue, by group name.
    pub fn groups(&self, queue: QueueId) -> impl Iterator<Item = &GroupRow> + '_ {
        let versions = self.groups.get(&queue).into_iter().flat_map(BTreeMap::values);
        versions.map(move |version| &self.tables.groups[&(queue, *version)])
    }

    /// What a partition that has everything up to `version` lacks, in the order in which it must take it.
    pub fn changes_since(&self, version: CatalogVersion) -> Vec<CatalogChange> {
        self.first_changes_since(version, usize::MAX)
    }

    /// The first `changes_max` of [`Self::changes_since`]; costs nothing for the rest.
    pub fn first_changes_since(&self, version: CatalogVersion, changes_max: usize) -> Vec<CatalogChange> {
        let later = self.changes.range(CatalogVersion(version.0.saturating_add(1))..);
        let changes = later.map(|(&version, &changed)| match changed {
            Changed::Queue(id) => CatalogChange::PutQueue(PutQueue {
                row: self.tables.queues[&id].clone(),
                version,
            }),
            Changed::Tombstone(queue) => CatalogChange::DeleteQueue(DeleteQueue { queue, version }),
            Changed::Group(id) => CatalogChange::RegisterGroup {
                queue: self.tables.queues[&id].clone(),
                group: self.tables.groups[&(id, version)].clone(),
            },
        });
        changes.take(changes_max).collect()
    }

    /// Tombstones that a [`CatalogCommand::ForgetTombstones`] up to `version` would drop: (incarnation, version of its deletion).
    pub fn tombstones_up_to(&self, version: CatalogVersion) -> Vec<(QueueId, CatalogVersion)> {
        let all = self.tables.tombstones.iter().map(|(id, row)| (*id, row.version));
        all.filter(|(_, deleted)| *deleted <= version).collect()
    }

    fn create_queue(&mut self, name: &str, listed: bool) -> CatalogReply {
        match self.queue(name).cloned() {
            Some(row) => self.put_listed(row, None, listed),
            None => self.bear(name, QueueSettings::implicit(name), listed),
        }
    }

    fn configure(&mut self, name: &str, patch: &SettingsPatch, merge: bool) -> CatalogReply {
        let defaults = QueueSettings::configured();
        let Some(row) = self.queue(name).cloned() else {
            return self.bear(name, patch.apply(&defaults, &defaults), true);
        };
        let base = if merge && row.listed {
            &row.settings
        } else {
            &defaults
        };
        let settings = patch.apply(base, &defaults);
        self.put_listed(row, Some(settings), true)
    }

    /// Makes a queue.
    fn bear(&mut self, name: &str, settings: QueueSettings, listed: bool) -> CatalogReply {
        if self.tables.queues.len() >= usize::try_from(self.limits.queues_max).unwrap_or(usize::MAX) {
            return CatalogReply::Refused(CatalogRefusal::QueuesFull);
        }
        let version = self.next_version();
        let id = QueueId(version.0);
        let created = self.stamps().wall;
        let row = QueueRow {
            id,
            name: name.to_owned(),
            settings,
            version,
            listed,
            created,
        };
        self.names.insert(name.to_owned(), id);
        self.groups.insert(id, BTreeMap::new());
        self.put(row.clone());
        CatalogReply::Queue { row, changed: true }
    }

    /// Changes a queue that is there, if this is a change.
    fn put_listed(
        &mut self,
        mut row: QueueRow,
        settings: Option<QueueSettings>,
        listed: bool,
    ) -> CatalogReply {
        let lists = listed && !row.listed;
        let sets = settings
            .as_ref()
            .is_some_and(|settings| *settings != row.settings);
        if !lists && !sets {
            return CatalogReply::Queue { row, changed: false };
        }
        if lists {
            row.listed = true;
            row.created = self.stamps().wall;
        }
        if let Some(settings) = settings {
            row.settings = settings;
        }
        self.changes.remove(&row.version);
        row.version = self.next_version();
        self.put(row.clone());
        CatalogReply::Queue { row, changed: true }
    }

    fn put(&mut self, row: QueueRow) {
        self.touch(CatalogRowKey::Queue(row.id));
        self.changes.insert(row.version, Changed::Queue(row.id));
        self.tables.queues.insert(row.id, row);
    }

    fn delete_queue(&mut self, name: &str) -> CatalogReply {
        let Some(id) = self.names.remove(name) else {
            return CatalogReply::Deleted {
                existed: false,
                id: None,
            };
        };
        let (existed, row_version) = {
            let row = &self.tables.queues[&id];
            (row.listed, row.version)
        };
        self.changes.remove(&row_version);
        self.remove_row(CatalogRowKey::Queue(id));
        for version in self.groups.remove(&id).unwrap_or_default().into_values() {
            self.changes.remove(&version);
            self.remove_row(CatalogRowKey::Group(id, version));
        }
        let version = self.next_version();
        self.touch(CatalogRowKey::Tombstone(id));
        self.tables.tombstones.insert(id, CatalogTombstoneRow { version });
        self.changes.insert(version, Changed::Tombstone(id));
        CatalogReply::Deleted {
            existed,
            id: Some(id),
        }
    }

    fn register(&mut self, queue: &str, group: &str, start: GroupStart) -> CatalogReply {
        let row = match self.queue(queue).cloned() {
            Some(row) => row,
            None => match self.bear(queue, QueueSettings::implicit(queue), false) {
                CatalogReply::Queue { row, .. } => row,
                refused @ (CatalogReply::Refused(_)
                | CatalogReply::Deleted { .. }
                | CatalogReply::Group { .. }
                | CatalogReply::Done) => return refused,
            },
        };
        if let Some(group) = self.group(row.id, group) {
            return CatalogReply::Group {
                queue: row,
                group: group.clone(),
                created: false,
            };
        }
        let groups_max = usize::try_from(self.limits.groups_per_queue_max).unwrap_or(usize::MAX);
        if self.groups[&row.id].len() >= groups_max {
            return CatalogReply::Refused(CatalogRefusal::GroupsFull);
        }
        let version = self.next_version();
        let registered = self.stamps().wall;
        let group = GroupRow {
            name: group.to_owned(),
            start,
            registered,
            version,
        };
        self.touch(CatalogRowKey::Group(row.id, version));
        self.tables.groups.insert((row.id, version), group.clone());
        self.groups
            .entry(row.id)
            .or_default()
            .insert(group.name.clone(), version);
        self.changes.insert(version, Changed::Group(row.id));
        CatalogReply::Group {
            queue: row,
            group,
            created: true,
        }
    }

    fn forget_tombstones(&mut self, up_to: CatalogVersion) -> CatalogReply {
        for (id, version) in self.tombstones_up_to(up_to) {
            self.remove_row(CatalogRowKey::Tombstone(id));
            self.changes.remove(&version);
        }
        CatalogReply::Done
    }

    fn next_version(&mut self) -> CatalogVersion {
        self.touch(CatalogRowKey::Meta);
        let version = &mut self.tables.meta.version;
        version.0 += 1;
        *version
    }

    /// Must come before every change of a row.
    fn touch(&mut self, key: CatalogRowKey) {
        let tables = &self.tables;
        self.tracker
            .touch(key, || tables.contains(key), || tables.row(key));
    }

    fn remove_row(&mut self, key: CatalogRowKey) {
        self.touch(key);
        self.tables.remove(key);
        self.tracker.removed(key);
    }
}
