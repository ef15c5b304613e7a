//! The one home of writing: answers to stdout, everything else to stderr. Who reads only the beginning
//! (`orchestrix tasks | head`) ends the program quietly.
//!
//! **Invariant:** what came from outside is cleaned before it reaches a terminal, so no task can move the
//! cursor or rename the window of the reader.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use super::fail::{Exit, Fail};
use super::table::Table;

/// When to colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Color {
    // On a terminal, unless NO_COLOR is set.
    #[default]
    Auto,
    Always,
    Never,
}

/// For whom to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Tables and sentences.
    People,
    /// One JSON value per line.
    Json,
}

/// A way to set a text apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Style {
    #[default]
    Plain,
    Bold,
    Dim,
    Good,
    Bad,
    Busy,
    Wait,
    /// A block in one of the colours that stand for many things of a kind.
    Block(usize),
}

/// Colours of blocks, in ANSI's table of 256: light enough for black letters, and apart for neighbours.
const BLOCKS: [u8; 12] = [117, 215, 120, 211, 187, 147, 221, 80, 174, 156, 183, 252];

/// Where answers go and how they look.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Out {
    pub(crate) format: Format,
    colored: bool,
    notes_colored: bool,
    terminal: bool,
}

impl Out {
    pub(crate) fn new(format: Format, color: Color) -> Self {
        let terminal = io::stdout().is_terminal();
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let dumb = set("TERM").is_some_and(|term| term == "dumb");
        let colored = |terminal: bool| match color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => terminal && set("NO_COLOR").is_none() && !dumb,
        };
        let notes_colored = colored(io::stderr().is_terminal());
        Self { format, colored: colored(terminal), notes_colored, terminal }
    }

    /// Whether what goes to stderr is coloured.
    pub(crate) fn notes_are_colored(self) -> bool {
        self.notes_colored
    }

    pub(crate) fn is_json(self) -> bool {
        self.format == Format::Json
    }

    /// One line for people, or several. Only colours get through.
    pub(crate) fn line(self, text: &str) -> Result<(), Fail> {
        let lines: Vec<String> = text.split('\n').map(clean).collect();
        write_out(format!("{}\n", lines.join("\n")).as_bytes())
    }

    /// One line that a task wrote: as it is into files and pipes, cleaned on a terminal.
    pub(crate) fn foreign_line(self, text: &str, style: Style) -> Result<(), Fail> {
        if self.terminal {
            return self.line(&self.paint(style, &clean(text)));
        }
        write_out(format!("{text}\n").as_bytes())
    }

    /// One line of JSON.
    pub(crate) fn json(self, value: &impl Serialize) -> Result<(), Fail> {
        let line =
            serde_json::to_string(value).map_err(|error| Fail::new(Exit::Refused, error.to_string()))?;
        write_out(format!("{}\n", escape(&line)).as_bytes())
    }

    pub(crate) fn table(self, table: &Table) -> Result<(), Fail> {
        table.lines(|style, text| self.paint(style, text)).iter().try_for_each(|line| self.line(line))
    }

    /// A word about the answer that is not part of it.
    pub(crate) fn note(self, text: &str) {
        note(text);
    }

    /// The same in parts, each in its own style: only their texts are cleaned.
    pub(crate) fn note_in_parts(self, parts: &[(Style, &str)]) {
        drop(writeln!(io::stderr(), "{}", self.painted_note(parts)));
    }

    fn painted_note(self, parts: &[(Style, &str)]) -> String {
        parts.iter().map(|(style, text)| paint(self.notes_colored, *style, &plain(text))).collect()
    }

    pub(crate) fn bytes(self, bytes: &[u8]) -> Result<(), Fail> {
        write_out(bytes)
    }

    pub(crate) fn paint(self, style: Style, text: &str) -> String {
        paint(self.colored, style, text)
    }
}

fn paint(colored: bool, style: Style, text: &str) -> String {
    let code = match style {
        Style::Plain => return text.to_owned(),
        Style::Block(number) => &format!("30;48;5;{}", BLOCKS[number % BLOCKS.len()]),
        Style::Bold => "1",
        Style::Dim => "2",
        Style::Good => "32",
        Style::Bad => "31",
        Style::Busy => "36",
        Style::Wait => "33",
    };
    if colored { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
}

/// Writes lines to stderr, without anything that a terminal would act upon. A failure of that cannot be reported.
pub(crate) fn note(text: &str) {
    let lines: Vec<String> = text.split('\n').map(plain).collect();
    drop(writeln!(io::stderr(), "{}", lines.join("\n")));
}

/// Takes away colours, too.
pub(crate) fn plain(text: &str) -> String {
    cleaned(text).replace('\x1b', "\u{fffd}")
}

/// JSON with what a terminal would act upon written as JSON can: such characters are in its texts only.
pub(crate) fn escape(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for c in json.chars() {
        if c.is_control() || turns_text(c) {
            escaped.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            escaped.push(c);
        }
    }
    escaped
}

/// Characters that change in which order others are shown.
fn turns_text(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Takes away what a terminal would act upon: control characters and all sequences but those for colour. Colours end with the
/// text.
pub(crate) fn clean(text: &str) -> String {
    let mut cleaned = cleaned(text);
    if cleaned.contains('\x1b') && !cleaned.ends_with("\x1b[0m") {
        cleaned.push_str("\x1b[0m");
    }
    cleaned
}

fn cleaned(text: &str) -> String {
    let mut cleaned = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        if let Some(length) = color_sequence(rest) {
            cleaned.push_str(&rest[..length]);
            rest = &rest[length..];
            continue;
        }
        match next {
            '\t' => cleaned.push(next),
            '\n' | '\r' => cleaned.push(' '),
            hidden if hidden.is_control() || turns_text(hidden) => cleaned.push('\u{fffd}'),
            other => cleaned.push(other),
        }
        rest = &rest[next.len_utf8()..];
    }
    cleaned
}

/// The length of a sequence like `ESC [ 1 ; 31 m` at the beginning of a text, unless it conceals what follows.
fn color_sequence(text: &str) -> Option<usize> {
    let inner = text.strip_prefix("\x1b[")?;
    let end = inner.find(|c: char| !(c.is_ascii_digit() || c == ';'))?;
    let shows = inner[end..].starts_with('m') && !conceals(&inner[..end]);
    shows.then_some(2 + end + 1)
}

/// Whether one of the numbers means "conceal". In a colour, as in `38;5;8`, that number means something else; what cannot be
/// understood may mean anything.
fn conceals(numbers: &str) -> bool {
    let mut numbers = numbers.split(';');
    while let Some(number) = numbers.next() {
        match number.trim_start_matches('0') {
            "8" => return true,
            "38" | "48" | "58" => {
                let rest = match numbers.next() {
                    Some("5") => 1,
                    Some("2") => 3,
                    Some(_) | None => return true,
                };
                if numbers.by_ref().take(rest).count() < rest {
                    return true;
                }
            }
            _ => {}
        }
    }
    false
}

fn write_out(bytes: &[u8]) -> Result<(), Fail> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(|error| {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Fail::quiet();
        }
        Fail::new(Exit::Refused, format!("cannot write the answer: {error}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_controls_are_removed_and_colours_stay() {
        assert_eq!(clean("\x1b[31mred\x1b[0m"), "\x1b[31mred\x1b[0m");
        assert_eq!(clean("a\x1b]0;title\x07b"), "a\u{fffd}]0;title\u{fffd}b");
        assert_eq!(clean("\x1b[2Jgone"), "\u{fffd}[2Jgone");
        assert_eq!(clean("one\ntwo\tthree"), "one two\tthree");
        assert_eq!(clean("\x1b["), "\u{fffd}[");
    }

    #[test]
    fn nothing_is_concealed_or_turned_around() {
        for concealing in ["8", "08", "1;8", "8;1", "38;5;1;8", "38;8", "38;5", "48;2;8;8", "38", "0;0008;0"]
        {
            let text = format!("\x1b[{concealing}mgone");
            assert_eq!(clean(&text), format!("\u{fffd}[{concealing}mgone"));
        }
        for colour in ["", "0", "1;31", "38;5;8", "48;5;8;1", "38;2;8;8;8", "90", "18", "80"] {
            let text = format!("\x1b[{colour}mseen");
            assert_eq!(clean(&text), format!("{text}\x1b[0m"), "colours end with the text");
        }
        for turning in ['\u{202e}', '\u{2066}', '\u{2069}', '\u{202a}', '\u{200f}', '\u{61c}'] {
            assert_eq!(clean(&format!("a{turning}b")), "a\u{fffd}b");
        }
        assert_eq!(plain("\x1b[31mred"), "\u{fffd}[31mred");
        assert_eq!(escape("\"a\u{202e}\u{9b}2J\u{e4}\""), "\"a\\u202e\\u009b2J\u{e4}\"");
    }

    #[test]
    fn colours_are_used_only_when_wanted() {
        assert_eq!(Out::new(Format::People, Color::Never).paint(Style::Bad, "x"), "x");
        assert_eq!(Out::new(Format::People, Color::Always).paint(Style::Bad, "x"), "\x1b[31mx\x1b[0m");
    }

    #[test]
    fn a_note_keeps_its_own_colours_and_no_others() {
        let parts = [(Style::Bad, "FAILED"), (Style::Plain, ": \x1b[31mred\ntwo")];
        let note = |color| Out::new(Format::People, color).painted_note(&parts);
        assert_eq!(note(Color::Always), "\x1b[31mFAILED\x1b[0m: \u{fffd}[31mred two");
        assert_eq!(note(Color::Never), "FAILED: \u{fffd}[31mred two");
    }
}
