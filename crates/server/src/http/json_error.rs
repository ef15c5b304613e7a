//! What is wrong with a JSON value, in plain words: the field, and what it must be.
//!
//! The messages of serde name types of Rust. This file alone knows their form; one with another form is kept as it is.

use serde_json::Error;
use serde_json::error::Category;
use serde_path_to_error::Path;

/// Bounds how much of a caller's own text comes back in an error.
const QUOTED_CHARS_MAX: usize = 64;

/// One sentence for a value that was refused at `path`.
pub(crate) fn plain(path: &Path, error: &Error) -> String {
    let message = error.to_string();
    let end = if error.line() == 0 { None } else { message.rfind(" at line ") };
    let (what, position) = message.split_at(end.unwrap_or(message.len()));
    match error.classify() {
        Category::Data => of_field(path, what),
        Category::Eof => format!("the JSON is not complete: {what}{position}"),
        Category::Syntax | Category::Io => format!("this is not JSON: {what}{position}"),
    }
}

fn of_field(path: &Path, what: &str) -> String {
    let named = path.iter().next().is_some();
    let at = |problem: String| if named { format!("{path}: {problem}") } else { problem };
    if let Some(unknown) = what.strip_prefix("unknown field `") {
        let fields = unknown.rsplit_once("`, expected ").map(|(_, fields)| fields);
        return at(match fields {
            Some(fields) => format!("unknown field; expected {fields}"),
            None => "unknown field; no fields are expected here".to_owned(),
        });
    }
    if let Some(missing) = inner(what, "missing field `") {
        return of_object(path, missing, "this field is required");
    }
    if let Some(doubled) = inner(what, "duplicate field `") {
        return of_object(path, doubled, "this field is given twice");
    }
    let value = ["invalid type: ", "invalid value: ", "unknown variant "];
    let value = value.iter().find_map(|kind| what.strip_prefix(kind)?.rsplit_once(", expected "));
    match value {
        Some((given, expected)) => {
            let (expected, given) = (wanted(expected, given), found(given));
            at(format!("must be {expected}, not {given}"))
        }
        None => at(what.to_owned()),
    }
}

fn inner<'a>(what: &'a str, start: &str) -> Option<&'a str> {
    what.strip_prefix(start)?.strip_suffix('`')
}

/// A problem of a field for which the path has only the object around it.
fn of_object(path: &Path, field: &str, problem: &str) -> String {
    match path.iter().next() {
        Some(_) => format!("{path}.{field}: {problem}"),
        None => format!("{field}: {problem}"),
    }
}

/// What a type of Rust is to somebody who writes JSON.
fn wanted(expected: &str, given: &str) -> String {
    match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" | "i32" | "i64" if given.starts_with("floating point ") => {
            "a whole number without a fraction or an exponent".to_owned()
        }
        "u32" => format!("a whole number from 0 to {}", u32::MAX),
        "i32" => format!("a whole number from {} to {}", i32::MIN, i32::MAX),
        "u8" | "u16" | "u64" | "usize" => "a whole number, 0 or more".to_owned(),
        "i64" => "a whole number".to_owned(),
        "f32" | "f64" => "a number".to_owned(),
        "a boolean" => "true or false".to_owned(),
        "a sequence" => "a list".to_owned(),
        other => other.to_owned(),
    }
}

/// What was given, with as much of a text as is needed to know it again.
fn found(given: &str) -> String {
    let value = ["integer ", "floating point ", "boolean ", "string "].iter();
    match given {
        "sequence" | "list" => "a list".to_owned(),
        "map" | "newtype struct" => "an object".to_owned(),
        "unit value" => "null".to_owned(),
        other => cut(value.into_iter().find_map(|kind| other.strip_prefix(kind)).unwrap_or(other)),
    }
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(QUOTED_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.trim_matches('`').to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use orchestrix_core::wire::{Heartbeat, LeaseQueue, LogAppend, Object, Submit, SubmitBatch};
    use serde::de::DeserializeOwned;

    use super::*;

    fn complaint<T: DeserializeOwned>(body: &str) -> String {
        let mut reader = serde_json::Deserializer::from_str(body);
        let located = serde_path_to_error::deserialize::<_, Object<T>>(&mut reader).err().unwrap();
        plain(located.path(), located.inner())
    }

    #[test]
    fn a_wrong_value_is_named_without_types_of_rust() {
        for (field, problem) in [
            (
                r#""priority":"high""#,
                r#"priority: must be a whole number from -2147483648 to 2147483647, not "high""#,
            ),
            (r#""max_attempts":-1"#, "max_attempts: must be a whole number from 0 to 4294967295, not -1"),
            (r#""delay_ms":-1"#, "delay_ms: must be a whole number, 0 or more, not -1"),
            (
                r#""delay_ms":1.5"#,
                "delay_ms: must be a whole number without a fraction or an exponent, not 1.5",
            ),
            (r#""delay_ms":[1]"#, "delay_ms: must be a whole number, 0 or more, not a list"),
            (r#""delay_ms":{}"#, "delay_ms: must be a whole number, 0 or more, not an object"),
            (r#""backoff":5"#, "backoff: must be an object, not 5"),
            (r#""backoff":null"#, "backoff: must be an object, not null"),
            (r#""backoff":{"factor":"x"}"#, r#"backoff.factor: must be a number, not "x""#),
            (r#""key":true"#, "key: must be a string, not true"),
        ] {
            assert_eq!(complaint::<Submit>(&format!(r#"{{"queue":"q","payload":1,{field}}}"#)), problem);
        }
    }

    #[test]
    fn fields_that_are_missing_doubled_or_unknown_are_named() {
        assert_eq!(complaint::<Submit>(r#"{"queue":"q"}"#), "payload: this field is required");
        let item = complaint::<SubmitBatch>(r#"{"tasks":[{"payload":1}]}"#);
        assert_eq!(item, "tasks[0].queue: this field is required");
        let doubled = complaint::<Submit>(r#"{"queue":"q","queue":"q","payload":1}"#);
        assert_eq!(doubled, "queue: this field is given twice");
        let unknown = complaint::<Heartbeat>(r#"{"lease_id":1,"x`, expected y":2}"#);
        assert!(
            unknown.starts_with("x`, expected y: unknown field; expected one of `lease_id`"),
            "{unknown}"
        );
    }

    #[test]
    fn a_choice_and_a_list_are_named() {
        let stream = complaint::<LogAppend>(r#"{"lease_id":1,"lines":[{"text":"a","stream":"foo"}]}"#);
        assert_eq!(stream, "lines[0].stream: must be one of `stdout`, `stderr`, `system`, not foo");
        let lines = complaint::<LogAppend>(r#"{"lease_id":1,"lines":"x"}"#);
        assert_eq!(lines, r#"lines: must be a list, not "x""#);
    }

    #[test]
    fn a_mistake_in_json_has_a_place() {
        for (body, begin) in
            [("{\"worker\":", "the JSON is not complete"), ("{\"worker\":x}", "this is not JSON")]
        {
            let problem = complaint::<LeaseQueue>(body);
            assert!(problem.starts_with(begin) && problem.contains("line 1 column"), "{problem}");
        }
    }

    #[test]
    fn long_text_of_a_caller_is_cut() {
        let long = complaint::<Submit>(&format!(
            r#"{{"queue":"q","payload":1,"delay_ms":"{}"}}"#,
            "x".repeat(9_999)
        ));
        assert!(long.len() < 200 && long.ends_with('…'), "{long}");
    }
}
