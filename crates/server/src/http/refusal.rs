//! Refusals by hyper itself, for bytes that are no request, as problem documents.

use http::StatusCode;
use orchestrix_core::wire::Problem;

/// The same bytes with a refusal of hyper at their end as a problem in JSON; none when there is no such refusal.
///
/// Answers of ours have a content type, and hyper's own have none. A refusal is the last thing on a connection, so it is at
/// the end of what is written; answers to earlier requests may be before it.
pub(crate) fn rewritten(bytes: &[u8]) -> Option<Vec<u8>> {
    if !bytes.ends_with(b"\r\n\r\n") {
        return None;
    }
    let start = bytes.windows(BEGINNING.len()).rposition(|window| window == BEGINNING)?;
    let head = std::str::from_utf8(&bytes[start..]).ok()?.trim_end();
    if head.contains("content-type:") || !head.contains("\r\ncontent-length: 0") {
        return None;
    }
    let status = StatusCode::from_bytes(head.as_bytes().get(9..12)?).ok()?;
    let (code, title, detail) = meaning(status)?;
    let problem = Problem {
        code: code.to_owned(),
        detail: detail.to_owned(),
        status: status.as_u16(),
        title: title.to_owned(),
        request_id: None,
    };
    let body = serde_json::to_vec(&problem).expect("a problem is plain JSON");
    let mut new = bytes[..start].to_vec();
    for line in head.split("\r\n").filter(|line| !line.starts_with("content-length")) {
        new.extend_from_slice(line.as_bytes());
        new.extend_from_slice(b"\r\n");
    }
    new.extend_from_slice(HEADERS);
    new.extend_from_slice(format!("content-length: {}\r\n\r\n", body.len()).as_bytes());
    new.extend_from_slice(&body);
    Some(new)
}

const BEGINNING: &[u8] = b"HTTP/1.1 4";
const HEADERS: &[u8] =
    b"content-type: application/problem+json\r\ncache-control: no-store\r\nx-content-type-options: nosniff\r\n";

fn meaning(status: StatusCode) -> Option<(&'static str, &'static str, &'static str)> {
    match status {
        StatusCode::BAD_REQUEST => {
            Some(("invalid", "Invalid request", "the bytes are not an HTTP/1.1 request"))
        }
        StatusCode::URI_TOO_LONG => {
            Some(("too_large", "URL too long", "path and query are longer than any limit"))
        }
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => Some((
            "too_large",
            "Headers too large",
            "there are more than 100 headers, or they are larger than any limit",
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFUSAL: &str =
        "HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\ndate: today\r\n\r\n";

    #[test]
    fn only_a_refusal_of_hyper_is_rewritten() {
        let answer = String::from_utf8(rewritten(REFUSAL.as_bytes()).unwrap()).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains("problem+json") && head.contains("date: today"), "{head}");
        assert!(head.contains(&format!("content-length: {}", body.len())), "{head}");
        let problem: Problem = serde_json::from_str(body).unwrap();
        assert_eq!((problem.code.as_str(), problem.status), ("invalid", 400));
        let before = "HTTP/1.1 404 Not Found\r\ncontent-type: a\r\ncontent-length: 2\r\n\r\n{}";
        let both = rewritten(format!("{before}{REFUSAL}").as_bytes()).unwrap();
        assert_eq!(both, format!("{before}{answer}").as_bytes());
        for ours in [
            before.to_owned(),
            REFUSAL.replace("date", "content-type"),
            REFUSAL.replace("400", "200"),
            REFUSAL.replace("content-length: 0", "content-length: 5"),
            format!("{REFUSAL}x"),
            String::new(),
        ] {
            assert!(rewritten(ours.as_bytes()).is_none(), "{ours}");
        }
    }
}
