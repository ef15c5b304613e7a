//! Tables for people: aligned columns, a head, no lines to draw.

use super::out::{Style, plain};

/// Characters of one cell. Keeps a row readable; `--json` has everything.
const CELL_CHARACTERS_MAX: usize = 80;
const GAP: &str = "  ";

/// How the cells of a column stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}

/// A text with a style.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    text: String,
    style: Style,
}

/// Rows under a head.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<Cell>>,
}

impl Cell {
    pub(crate) fn styled(text: impl AsRef<str>, style: Style) -> Self {
        Self { text: shorten(&in_cell(text.as_ref())), style }
    }

    fn width(&self) -> usize {
        self.text.chars().count()
    }
}

impl<T: ToString> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::styled(text.to_string(), Style::Plain)
    }
}

impl Table {
    pub(crate) fn new(columns: &[(&'static str, Align)]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: Vec<Cell>) {
        assert_eq!(cells.len(), self.columns.len(), "a row has a cell for every column");
        self.rows.push(cells);
    }

    /// The head and all rows, painted by `paint`.
    pub(crate) fn lines(&self, paint: impl Fn(Style, &str) -> String) -> Vec<String> {
        let head: Vec<Cell> = self.columns.iter().map(|(name, _)| Cell::styled(name, Style::Dim)).collect();
        let rows: Vec<&[Cell]> =
            std::iter::once(head.as_slice()).chain(self.rows.iter().map(Vec::as_slice)).collect();
        let width = |n: usize| rows.iter().map(|row| row[n].width()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        rows.iter().map(|row| self.line(row, &widths, &paint)).collect()
    }

    fn line(&self, row: &[Cell], widths: &[usize], paint: &impl Fn(Style, &str) -> String) -> String {
        let mut line = String::new();
        for (n, cell) in row.iter().enumerate() {
            let padding = " ".repeat(widths[n] - cell.width());
            let painted = paint(cell.style, &cell.text);
            line.push_str(if n == 0 { "" } else { GAP });
            match self.columns[n].1 {
                Align::Right => line.extend([padding.as_str(), &painted]),
                Align::Left if n + 1 == row.len() => line.push_str(&painted),
                Align::Left => line.extend([painted.as_str(), &padding]),
            }
        }
        line
    }
}

/// Cells bring their own colours or none.
fn in_cell(text: &str) -> String {
    plain(text).replace('\t', " ")
}

fn shorten(text: &str) -> String {
    match text.char_indices().nth(CELL_CHARACTERS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(table: &Table) -> Vec<String> {
        table.lines(|_, text| text.to_owned())
    }

    #[test]
    fn columns_are_aligned_and_numbers_stand_right() {
        let mut table = Table::new(&[("ID", Align::Right), ("QUEUE", Align::Left), ("STATE", Align::Left)]);
        table.row(vec![Cell::from(7), Cell::from("mail"), Cell::from("WAITING")]);
        table.row(vec![Cell::from(1234), Cell::from("newsletter"), Cell::from("LEASED")]);
        assert_eq!(
            lines(&table),
            ["  ID  QUEUE       STATE", "   7  mail        WAITING", "1234  newsletter  LEASED"]
        );
    }

    #[test]
    fn colours_do_not_move_columns() {
        let mut table = Table::new(&[("A", Align::Left), ("B", Align::Left)]);
        table.row(vec![Cell::styled("x", Style::Bad), Cell::from("y")]);
        table.row(vec![Cell::from("long"), Cell::from("y")]);
        let painted =
            table.lines(|style, text| if style == Style::Bad { format!("<{text}>") } else { text.into() });
        assert_eq!(painted[1], "<x>     y");
        assert_eq!(painted[2], "long  y");
    }

    #[test]
    fn a_cell_can_neither_break_its_line_nor_paint_nor_run_on() {
        let mut table = Table::new(&[("A", Align::Left)]);
        table.row(vec![Cell::from("two\nlines \x1b[31mred")]);
        table.row(vec![Cell::from("ä".repeat(200))]);
        let lines = lines(&table);
        assert_eq!(lines[1], "two lines \u{fffd}[31mred");
        assert_eq!(lines[2].chars().count(), CELL_CHARACTERS_MAX + 1);
    }
}
