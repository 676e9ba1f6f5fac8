//! Merging files, so that a look-up meets few of them.

use std::sync::Arc;

use laneway_core::time::WallTime;

use super::file::DedupFile;
use super::memory::Row;
use super::{DedupError, DedupStore};
use crate::sealed::FileError;

/// A file is merged with the newer ones if it has at most so many times their rows: each is then more than this factor
/// larger than all newer ones together, and a row is rewritten a logarithmic number of times.
const GROWTH: u64 = 2;

/// A merged file spans at most this part of the longest window, so that it is dropped as a whole soon after its last use.
const SPAN_DIVISOR: u64 = 4;

/// Files of fewer rows together are merged whatever they span.
const ROWS_SMALL: u64 = 4096;

impl DedupStore {
    /// Merges the newest files as far as they fit together.
    pub(super) fn merge(&self, next_file: &mut u64) -> Result<(), DedupError> {
        let (victims, now, before) = {
            let state = self.read_state();
            let damaged = |file: &DedupFile| self.shared.damage.holds(file.path());
            (
                victims(&state.files, &damaged).to_vec(),
                state.wall,
                state.expired_before,
            )
        };
        if victims.is_empty() {
            return Ok(());
        }
        let mut writer = self.new_file(next_file, victims.iter().map(|file| file.rows).sum())?;
        let expired = |row: &Row| row.place.kept_until() < now || row.place.wall() < before;
        each_merged(&victims, &mut |row| {
            if expired(&row) { Ok(()) } else { writer.push(row) }
        })?;
        let merged = self.finish_file(writer)?;
        let mut state = self.write_state();
        state
            .files
            .retain(|file| !victims.iter().any(|victim| Arc::ptr_eq(victim, file)));
        state.files.extend(merged);
        Ok(())
    }
}

/// The newest files that should be one: at least two, or none. A damaged one stays as it is: it must not keep rows from
/// being written.
fn victims<'a>(files: &'a [Arc<DedupFile>], damaged: &dyn Fn(&DedupFile) -> bool) -> &'a [Arc<DedupFile>] {
    let window = files
        .iter()
        .map(|file| file.kept_until.0.saturating_sub(file.wall_max.0))
        .max()
        .unwrap_or(0);
    let mut rows = 0;
    let mut oldest = WallTime(u64::MAX);
    let mut from = files.len();
    for (at, file) in files.iter().enumerate().rev() {
        let grown = rows + file.rows;
        let newest = files.last().map_or(WallTime(0), |file| file.wall_max);
        let span = newest.0.saturating_sub(file.wall_min.min(oldest).0);
        let fits = span <= window / SPAN_DIVISOR || grown <= ROWS_SMALL;
        if damaged(file) || rows > 0 && (file.rows > rows.saturating_mul(GROWTH) || !fits) {
            break;
        }
        rows = grown;
        oldest = oldest.min(file.wall_min);
        from = at;
    }
    if files.len() - from >= 2 {
        &files[from..]
    } else {
        &[]
    }
}

/// Calls `each` with the newest row of each key, in order of the keys.
fn each_merged(
    files: &[Arc<DedupFile>],
    each: &mut dyn FnMut(Row) -> Result<(), FileError>,
) -> Result<(), FileError> {
    let mut inputs = files
        .iter()
        .map(|file| Input::new(file))
        .collect::<Result<Vec<_>, _>>()?;
    while let Some(key) = inputs.iter().filter_map(|input| Some(input.row()?.key)).min() {
        let mut newest: Option<Row> = None;
        for input in &mut inputs {
            let Some(row) = input.row().filter(|row| row.key == key) else {
                continue;
            };
            if newest.is_none_or(|other| other.place.wall() <= row.place.wall()) {
                newest = Some(row);
            }
            input.step()?;
        }
        newest.map_or(Ok(()), &mut *each)?;
    }
    Ok(())
}

/// A file being merged: one page of it at a time.
struct Input<'a> {
    file: &'a DedupFile,
    page: usize,
    rows: Vec<Row>,
    at: usize,
}

impl<'a> Input<'a> {
    fn new(file: &'a DedupFile) -> Result<Self, FileError> {
        Ok(Self {
            file,
            page: 0,
            rows: file.page(0)?,
            at: 0,
        })
    }

    fn row(&self) -> Option<Row> {
        self.rows.get(self.at).copied()
    }

    fn step(&mut self) -> Result<(), FileError> {
        self.at += 1;
        if self.at == self.rows.len() && self.page + 1 < self.file.pages() {
            self.page += 1;
            self.rows = self.file.page(self.page)?;
            self.at = 0;
        }
        Ok(())
    }
}
