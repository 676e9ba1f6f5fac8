//! Columns of text.

use std::fmt;

/// Longest cell shown.
const CELL_CHARS_MAX: usize = 60;

/// Rows of equally many cells under headings.
#[derive(Debug)]
pub(super) struct Table<const N: usize> {
    rows: Vec<[String; N]>,
}

impl<const N: usize> Table<N> {
    pub(super) fn new(headings: [&str; N]) -> Self {
        Self {
            rows: vec![headings.map(str::to_owned)],
        }
    }

    pub(super) fn row(&mut self, cells: [String; N]) {
        self.rows.push(cells.map(|cell| cut(&cell)));
    }

    /// A row of which nothing is cut: its cells are the broker's own words.
    pub(super) fn whole_row(&mut self, cells: [String; N]) {
        self.rows.push(cells.map(|cell| masked(&cell)));
    }
}

/// One line, no control characters: transaction ids and reasons come from anybody.
pub(super) fn masked(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}

fn cut(cell: &str) -> String {
    let masked = masked(cell);
    match masked.char_indices().nth(CELL_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &masked[..end]),
        None => masked,
    }
}

impl<const N: usize> fmt::Display for Table<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |column: usize| {
            self.rows
                .iter()
                .map(|row| row[column].chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: [usize; N] = std::array::from_fn(width);
        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(widths) {
                line.push_str(&format!("{cell:width$}  "));
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_control_characters_shown() {
        let mut table = Table::new(["A", "B"]);
        table.row(["long cell".to_owned(), "x\ny".to_owned()]);
        table.row(["z".repeat(100), String::new()]);
        table.whole_row([String::new(), "w".repeat(100)]);
        let text = table.to_string();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 4);
        assert!(lines[3].ends_with(&"w".repeat(100)));
        assert!(lines[1].ends_with("x\u{fffd}y"));
        assert!(lines[2].ends_with('…'));
        assert_eq!(lines[0].find('B'), lines[1].find('x'));
    }
}
