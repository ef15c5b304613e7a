//! The dashboard: three files in the binary. It only uses the public interface.

use http::StatusCode;

use crate::http::answer::Reply;

pub(crate) fn page() -> Reply {
    let page = include_str!("../../dashboard/index.html");
    Reply::new(StatusCode::OK, "text/html; charset=utf-8", page)
}

pub(crate) fn script() -> Reply {
    let script = include_str!("../../dashboard/dashboard.js");
    Reply::new(StatusCode::OK, "text/javascript; charset=utf-8", script)
}

pub(crate) fn style() -> Reply {
    let style = include_str!("../../dashboard/dashboard.css");
    Reply::new(StatusCode::OK, "text/css; charset=utf-8", style)
}
