//! Paths and queries: numbers, names and switches from text. Unknown parameters are refused.

use std::borrow::Cow;
use std::str::FromStr;

use orchestrix_core::limits::ID_MAX;
use orchestrix_core::{Name, TaskId};
use percent_encoding::percent_decode_str;

use crate::http::error::Fault;

/// The parameters of a query, by name.
#[derive(Debug)]
pub(crate) struct Query<'a> {
    values: Vec<(Cow<'a, str>, Cow<'a, str>)>,
}

impl<'a> Query<'a> {
    /// Reads a query that may have only these parameters, each once.
    pub(crate) fn parse(query: Option<&'a str>, known: &[&str]) -> Result<Self, Fault> {
        let mut values: Vec<(Cow<'a, str>, Cow<'a, str>)> = Vec::new();
        for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (name, value) = (decode(name, Plus::IsSpace)?, decode(value, Plus::IsSpace)?);
            if !known.contains(&&*name) {
                return Err(Fault::Invalid(unknown(&name, known)));
            }
            if values.iter().any(|(earlier, _)| *earlier == name) {
                return Err(Fault::Invalid(format!("parameter {name} is given twice")));
            }
            values.push((name, value));
        }
        Ok(Self { values })
    }

    /// The text of a parameter; an empty one counts as not given.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        let found = self.values.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| &**value).filter(|value| !value.is_empty())
    }

    pub(crate) fn number<T: FromStr>(&self, name: &str) -> Result<Option<T>, Fault> {
        let parse = |text: &str| {
            text.parse().map_err(|_| {
                Fault::Invalid(format!("parameter {name} must be a whole number, 0 or more, not {text:?}"))
            })
        };
        self.text(name).map(parse).transpose()
    }

    /// A number within bounds, or what stands for it when it is not given.
    pub(crate) fn bounded(&self, name: &str, min: usize, max: usize, default: usize) -> Result<usize, Fault> {
        let number = self.number(name)?.unwrap_or(default);
        if (min..=max).contains(&number) {
            return Ok(number);
        }
        Err(Fault::Invalid(format!("parameter {name} must be from {min} to {max}, not {number}")))
    }

    pub(crate) fn switch(&self, name: &str) -> Result<bool, Fault> {
        match self.text(name) {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(other) => Err(Fault::Invalid(format!("parameter {name} is true or false, not {other:?}"))),
        }
    }

    pub(crate) fn name(&self, name: &str) -> Result<Option<Name>, Fault> {
        let parse =
            |text: &str| Name::new(text).map_err(|why| Fault::Invalid(format!("parameter {name}: {why}")));
        self.text(name).map(parse).transpose()
    }
}

fn unknown(name: &str, known: &[&str]) -> String {
    if known.is_empty() {
        return format!("parameter {name:?} is not known; this route has none");
    }
    format!("parameter {name:?} is not known; this route has {}", known.join(", "))
}

/// A task id in a path.
pub(crate) fn task_id(part: &str) -> Result<TaskId, Fault> {
    let id = part.parse().ok().filter(|id| (1..=ID_MAX).contains(id) && !part.starts_with('+'));
    id.map(TaskId).ok_or_else(|| {
        Fault::Invalid(format!(
            "{part:?} in the path is not a task id: that is a whole number from 1 to {ID_MAX}"
        ))
    })
}

/// The name of a queue or a worker in a path.
pub(crate) fn path_name(part: &str) -> Result<Name, Fault> {
    let text = decode(part, Plus::IsPlus)?;
    Name::new(&text).map_err(|why| Fault::Invalid(format!("{text:?} in the path: {why}")))
}

/// What a plus sign means: in a query it is a space.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Plus {
    IsSpace,
    IsPlus,
}

fn decode(text: &str, plus: Plus) -> Result<Cow<'_, str>, Fault> {
    let spaced = plus == Plus::IsSpace && text.contains('+');
    if !text.contains('%') && !spaced {
        return Ok(Cow::Borrowed(text));
    }
    let wrong = || Fault::Invalid(format!("{text:?} in the URL has an invalid percent-escape"));
    let is_escape =
        |after: &str| after.get(..2).is_some_and(|two| two.bytes().all(|it| it.is_ascii_hexdigit()));
    if !text.split('%').skip(1).all(is_escape) {
        return Err(wrong());
    }
    let text = if spaced { text.replace('+', " ") } else { text.to_owned() };
    let decoded = percent_decode_str(&text).decode_utf8().map_err(|_| wrong())?;
    Ok(Cow::Owned(decoded.into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_read_by_name() {
        let query = Query::parse(
            Some("queue=mail%3Aeu&limit=5&follow=true&state="),
            &["queue", "limit", "follow", "state"],
        );
        let query = query.unwrap();
        assert_eq!(query.name("queue").unwrap().unwrap().as_str(), "mail:eu");
        assert_eq!(query.bounded("limit", 1, 10, 7).unwrap(), 5);
        assert!(query.switch("follow").unwrap());
        assert_eq!(query.text("state"), None);
    }

    #[test]
    fn bad_query_parameters_are_refused() {
        for bad in ["x=1", "queue=a&queue=b", "queue=%", "queue=%zz", "queue=%ff", "%71ueue=1&queue=2"] {
            assert!(Query::parse(Some(bad), &["queue"]).is_err(), "{bad}");
        }
        assert!(Query::parse(None, &[]).is_ok());
    }

    #[test]
    fn numbers_outside_their_bounds_are_refused() {
        for bad in ["0", "11", "-1", "1.5", "1e3", "99999999999999999999", "x"] {
            let text = format!("limit={bad}");
            let query = Query::parse(Some(&text), &["limit"]).unwrap();
            assert!(query.bounded("limit", 1, 10, 7).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_task_id_is_a_whole_number_that_json_can_carry() {
        assert_eq!(task_id("9007199254740991").unwrap(), TaskId(ID_MAX));
        for bad in ["0", "-1", "+1", "1.0", "abc", "9007199254740992", "18446744073709551616", "%31"] {
            assert!(task_id(bad).is_err(), "{bad}");
        }
    }
}
