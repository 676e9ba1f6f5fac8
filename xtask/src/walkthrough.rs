//! The README's walk-through, run as a newcomer would: every `sh` block in order, in one shell, in a fresh folder.

use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::broker::scratch;
use crate::repo::{self, say};

/// Ports that the README's commands need: of one node, of three, and of three for each other.
const PORTS: [u16; 6] = [6632, 6633, 6634, 7632, 7633, 7634];

/// Comment before a block that is not run.
const SKIP: &str = "<!-- walkthrough: skip -->";

/// Stands between the outputs of two blocks.
const MARK: &str = "--- end of block, exit code";

/// One `sh` block with the output that the page shows after it.
#[derive(Debug, PartialEq, Eq)]
struct Block {
    /// From 1.
    line: usize,
    commands: String,
    expected: Option<String>,
}

/// Runs the blocks; fails when one exits with an error or prints something else than the page shows.
pub(crate) fn run_all(show: bool) -> Result<()> {
    for port in PORTS {
        if let Err(error) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            bail!("port {port} is needed: {error}");
        }
    }
    // Built before, so that the page's waiting time need not cover a build.
    repo::release_binary()?;
    let blocks = blocks(&repo::read(Path::new("README.md"))?);
    let folder = scratch("walkthrough")?;
    let outputs = run_blocks(&blocks, &folder)?;
    let mut wrong = 0;
    for (at, block) in blocks.iter().enumerate() {
        let output = outputs.get(at);
        let differs = difference(block, output);
        if show || differs.is_some() {
            say(format_args!("README.md:{}:\n{}", block.line, block.commands));
            say(output.map_or("(did not run)", |output| output.text.as_str()));
        }
        if let Some(text) = differs {
            say(format_args!("README.md:{}: {text}", block.line));
            wrong += 1;
        }
    }
    if wrong > 0 {
        let log = fs::read_to_string(folder.join("stderr.log")).unwrap_or_default();
        bail!("{wrong} block(s) of the walk-through went wrong; standard error:\n{log}");
    }
    fs::remove_dir_all(&folder)?;
    say(format_args!(
        "walk-through: {} blocks as README.md shows them",
        blocks.len()
    ));
    Ok(())
}

struct Output {
    text: String,
    exit_code: String,
}

/// All blocks in one bash, so that variables and background processes live on.
fn run_blocks(blocks: &[Block], folder: &Path) -> Result<Vec<Output>> {
    let script = folder.join("blocks.sh");
    fs::write(&script, script_text(blocks))?;
    let errors = fs::File::create(folder.join("stderr.log"))?;
    let output_path: PathBuf = folder.join("stdout.log");
    let mut path = write_cargo(folder)?.into_os_string();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let mut shell = Command::new("bash")
        .arg(&script)
        .current_dir(folder)
        .env("PATH", path)
        .env("CARGO_TARGET_DIR", repo::target_dir())
        .stdin(Stdio::null())
        .stdout(fs::File::create(&output_path)?)
        .stderr(errors)
        .spawn()
        .context("cannot start bash")?;
    shell.wait()?;
    std::io::stdout().flush()?;
    Ok(split(&fs::read_to_string(output_path)?))
}

fn script_text(blocks: &[Block]) -> String {
    let mut text = String::from("trap 'kill -9 $(jobs -p) 2>/dev/null' EXIT\n");
    for block in blocks {
        text.push_str(&block.commands);
        text.push_str(&format!("\ncode=$?; echo; echo '{MARK}' $code\n"));
    }
    text
}

/// A `cargo` for the blocks: they run outside of the repository, so it is told where the manifest is. A program, not a shell
/// function, so that `$!` is the broker.
fn write_cargo(folder: &Path) -> Result<PathBuf> {
    let bin = folder.join("bin");
    fs::create_dir_all(&bin)?;
    let cargo = repo::cargo().get_program().to_string_lossy().into_owned();
    let manifest = repo::root().join("Cargo.toml");
    let text = format!(
        "#!/bin/sh\ntask=$1\nshift\nexec '{cargo}' \"$task\" --manifest-path '{}' \"$@\"\n",
        manifest.display()
    );
    let path = bin.join("cargo");
    fs::write(&path, text)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(bin)
}

fn split(text: &str) -> Vec<Output> {
    let mut outputs = Vec::new();
    let mut current = Vec::new();
    for line in text.lines() {
        if let Some(code) = line.strip_prefix(MARK) {
            outputs.push(Output {
                text: current.join("\n"),
                exit_code: code.trim().to_owned(),
            });
            current.clear();
        } else {
            current.push(line);
        }
    }
    outputs
}

fn difference(block: &Block, output: Option<&Output>) -> Option<String> {
    let Some(output) = output else {
        return Some("the shell ended before it".to_owned());
    };
    if output.exit_code != "0" {
        return Some(format!("exit code {}", output.exit_code));
    }
    let expected = block.expected.as_deref()?;
    let (wanted, got) = (normal(expected), normal(&output.text));
    (wanted != got).then(|| format!("the page shows\n{wanted}\nand it printed\n{got}"))
}

/// Output with what differs from run to run made equal: UUIDs, times, long numbers, process ids; blank space and line ends of
/// JSON.
fn normal(text: &str) -> String {
    let mut normal = String::new();
    let (mut word, mut previous) = (String::new(), String::new());
    for c in text.chars().chain(['\n']) {
        if c.is_ascii_alphanumeric() || matches!(c, '-' | ':' | '.' | '_') {
            word.push(c);
            continue;
        }
        if !word.is_empty() {
            let shown = if previous == "pid" {
                "…".to_owned()
            } else {
                placeholder(&word)
            };
            normal.push_str(&shown);
            previous = std::mem::take(&mut word);
        }
        if !c.is_whitespace() {
            normal.push(c);
        }
    }
    normal
}

fn placeholder(word: &str) -> String {
    let bare = word.strip_prefix("dlq:").unwrap_or(word);
    let hex = |part: &str| part.chars().all(|c| c.is_ascii_hexdigit());
    let uuid =
        bare.len() == 36 && bare.split('-').map(str::len).eq([8, 4, 4, 4, 12]) && bare.split('-').all(hex);
    let time = bare.len() > 20 && bare.ends_with('Z') && bare.as_bytes()[10] == b'T';
    let number = bare.len() > 6 && bare.bytes().all(|b| b.is_ascii_digit());
    let kept = &word[..word.len() - bare.len()];
    if uuid || time || number {
        format!("{kept}…")
    } else {
        word.to_owned()
    }
}

/// The page's `sh` blocks that are run.
fn blocks(page: &str) -> Vec<Block> {
    let mut found: Vec<Block> = Vec::new();
    let mut skipped = false;
    let mut lines = page.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        if line == SKIP {
            skipped = true;
        }
        let Some(language) = line.strip_prefix("```") else {
            continue;
        };
        let body: Vec<&str> = lines
            .by_ref()
            .map(|(_, line)| line)
            .take_while(|line| !line.starts_with("```"))
            .collect();
        let body = body.join("\n");
        match language {
            "sh" if skipped => {}
            "sh" => found.push(Block {
                line: at + 1,
                commands: body,
                expected: None,
            }),
            "json" | "text" if !skipped => {
                if let Some(block) = found.last_mut() {
                    block.expected = Some(body);
                }
            }
            _ => {}
        }
        skipped = false;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_carry_their_output() {
        let page = "```sh\na\n```\ntext\n```json\n{}\n```\n<!-- walkthrough: skip -->\n```sh\nb\n```\n```sh\nc\n```\n";
        let block = |line, commands: &str, expected: Option<&str>| Block {
            line,
            commands: commands.to_owned(),
            expected: expected.map(str::to_owned),
        };
        assert_eq!(blocks(page), [block(1, "a", Some("{}")), block(12, "c", None)]);
    }

    #[test]
    fn ids_and_times_are_placeholders() {
        let one =
            r#"[{"id": "0191d0c4-0000-7000-8000-000000000000", "at":"2026-07-30T12:34:56.789Z", "n":3}]"#;
        let two = "[{\"id\":\"0191d0c4-1111-7000-8000-000000000001\",\n\"at\":\"2027-01-01T00:00:00.000Z\",\"n\":3}]";
        assert_eq!(normal(one), normal(two));
        assert_ne!(normal(one), normal(&two.replace(":3", ":4")));
        assert_eq!(normal("dlq:281474976710657"), normal("dlq:281474976710658"));
        assert_eq!(normal("(pid 17) was 3"), normal("(pid 4711) was 3"));
        assert_ne!(normal("(pid 17) was 3"), normal("(pid 17) was 4"));
    }
}
