//! Files with secrets, and errors about them, which never show their content.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

/// A file that was read, and why it is not private, if so.
#[derive(Debug)]
pub(crate) struct Text {
    pub(crate) text: String,
    pub(crate) private: Result<(), String>,
}

/// Reads a regular file, unless others can read it too. `what` says which file it is.
pub(crate) fn read_private(path: &Path, what: &str) -> Result<String, String> {
    // Without waiting: a named pipe may never get a writer.
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed());
    let shown = path.display();
    let file = options.open(path).map_err(|error| format!("cannot read {what} {shown}: {error}"))?;
    if file.metadata().is_ok_and(|metadata| !metadata.is_file()) {
        return Err(format!("cannot read {what} {shown}: it is not a regular file"));
    }
    let Text { text, private } = read_open(file, path, what)?;
    private.map(|()| text)
}

/// Reads a file that may hold a secret.
pub(crate) fn read(path: &Path, what: &str) -> Result<Text, String> {
    let file = File::open(path).map_err(|error| format!("cannot read {what} {}: {error}", path.display()))?;
    read_open(file, path, what)
}

fn read_open(mut file: File, path: &Path, what: &str) -> Result<Text, String> {
    let shown = path.display();
    let unreadable = |error: io::Error| format!("cannot read {what} {shown}: {error}");
    let private = match file.metadata().map_err(unreadable)? {
        metadata if is_private(&metadata) => Ok(()),
        metadata => {
            let mode = metadata.mode() & 0o777;
            Err(format!("others can read {what} {shown} (mode {mode:04o}); run `chmod 600 {shown}`"))
        }
    };
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(unreadable)?;
    Ok(Text { text, private })
}

/// Only its owner can read it; or it is a mounted secret: root's, and readable by a group of this process.
fn is_private(metadata: &Metadata) -> bool {
    let mode = metadata.mode() & 0o077;
    mode == 0 || (mode == 0o040 && metadata.uid() == 0 && is_own_group(metadata.gid()))
}

fn is_own_group(gid: u32) -> bool {
    let more = rustix::process::getgroups().unwrap_or_default();
    std::iter::once(rustix::process::getegid()).chain(more).any(|own| own.as_raw() == gid)
}

/// What a complaint about a text may repeat of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// Nothing: each word may be a secret.
    Nothing,
    /// Names of fields, but no values.
    Fields,
}

/// What is wrong with a TOML text, and where; without the line, which may hold a secret.
pub(crate) fn toml_mistake(text: &str, error: &toml::de::Error, repeat: Repeat) -> String {
    let why = without_integer_types(without_values(error.message(), repeat));
    let Some(before) = error.span().and_then(|span| text.get(..span.start)) else { return why };
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    format!("line {line}, column {column}: {why}")
}

/// The message with words of people for the integers of Rust.
fn without_integer_types(message: String) -> String {
    let integer = ["expected usize", "expected u64", "expected u32"];
    match integer.iter().find_map(|integer| message.strip_suffix(integer)) {
        Some(before) => format!("{before}expected a whole number"),
        None => message,
    }
}

/// A message without what it repeats: what is in double quotes, what is in backticks and no plain word, and the word that was
/// not expected. Words that are expected are ours.
fn without_values(message: &str, repeat: Repeat) -> String {
    let mut kept = String::with_capacity(message.len());
    let mut rest = message.trim_end();
    while let Some(start) = rest.find(['"', '`']) {
        let (before, quoted) = rest.split_at(start);
        kept.push_str(before);
        let quote = if quoted.starts_with('"') { '"' } else { '`' };
        let inner = &quoted[1..];
        // A value may have quotes of its own: the last one of its kind ends it.
        let end = if quote == '"' { inner.rfind(quote) } else { inner.find(quote) };
        let Some(end) = end else {
            kept.push('…');
            return kept;
        };
        let word = &inner[..end];
        let is_plain =
            word.len() <= 40 && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
        let is_ours = kept.contains("expected") || before.ends_with("missing field ");
        let is_field = repeat == Repeat::Fields && !before.ends_with("unknown variant ");
        if quote == '`'
            && (is_plain && (is_ours || is_field) || word.chars().all(|c| c.is_ascii_punctuation()))
        {
            kept.push_str(&quoted[..end + 2]);
        } else {
            kept.push('…');
        }
        rest = &inner[end + 1..];
    }
    kept.push_str(rest);
    kept
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn with_mode(mode: u32) -> (tempfile::NamedTempFile, Result<String, String>) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "secret").unwrap();
        std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        let read = read_private(file.path(), "the file");
        (file, read)
    }

    #[test]
    fn a_file_that_others_can_use_is_refused() {
        for mode in [0o604, 0o602, 0o620, 0o660, 0o644, 0o777] {
            let why = with_mode(mode).1.unwrap_err();
            assert!(why.contains(&format!("mode {mode:04o}")) && why.contains("chmod 600"), "{why}");
            assert!(!why.contains("secret"), "{why}");
        }
        for mode in [0o600, 0o400, 0o700] {
            assert_eq!(with_mode(mode).1.unwrap(), "secret", "{mode:o}");
        }
    }

    #[test]
    fn only_a_regular_file_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg("-m").arg("600").arg(&pipe).status().unwrap();
        assert!(made.success());
        for path in [pipe.as_path(), folder.path(), Path::new("/dev/null")] {
            let why = read_private(path, "the file").unwrap_err();
            assert!(why.contains("it is not a regular file"), "{why}");
        }
    }

    #[test]
    fn a_mounted_secret_is_accepted_from_root_for_an_own_group() {
        let is_root = rustix::process::geteuid().is_root();
        for mode in [0o640, 0o440] {
            let (file, read) = with_mode(mode);
            // The user of the tests has the group of the file; a group may only read files of root.
            assert_eq!(read.is_ok(), is_root, "{mode:o}");
            if is_root {
                let foreign = (60_000..).find(|gid| !is_own_group(*gid));
                std::os::unix::fs::chown(file.path(), None, foreign).unwrap();
                assert!(read_private(file.path(), "the file").is_err(), "the group is not ours");
                std::os::unix::fs::chown(file.path(), Some(60_000), Some(0)).unwrap();
                assert!(read_private(file.path(), "the file").is_err(), "the owner is not root");
            }
        }
    }

    #[test]
    fn a_mistake_is_reported_without_values() {
        for (text, told) in [
            ("a = 1\nengine = \"redis://u:canary@h\"\nengine = 2\n", "line 3"),
            ("engine = redis://u:canary@h\n", "line 1"),
            (
                "max_streams = \"redis://u:canary@h\"",
                "line 1, column 15: invalid type: string …, expected a whole number",
            ),
            ("log_format = \"redis://u:canary@h\"", "line 1, column 14: unknown variant …"),
            ("\"redis://u:canary@h\" = 1", "line 1"),
            ("max_streams = \"with \\\" and canary\"", "line 1"),
            ("engine = \"redis://u:canary@h", "line 1"),
            ("log_format = \"canary\"", "line 1, column 14: unknown variant …, expected "),
            ("listne = \"canary\"", "line 1, column 1: unknown field `listne`"),
        ] {
            let error = toml::from_str::<crate::config::ServeArgs>(text).unwrap_err();
            let why = toml_mistake(text, &error, Repeat::Fields);
            assert!(why.starts_with(told) && !why.contains("canary"), "{text}: {why}");
        }
    }
}
