//! Server-sent events.

use orchestrix_client::fuzz_api;

/// The first byte says in how long pieces the stream comes; its frames do not depend on that.
pub(super) fn frames(input: &[u8]) {
    let Some((&length, stream)) = input.split_first() else { return };
    let whole = fuzz_api::frames([stream]);
    let cut = fuzz_api::frames(stream.chunks(usize::from(length) + 1));
    assert_eq!(whole, cut, "the frames are the same wherever the bytes are cut");
    for (event, id, data) in whole.unwrap_or_default() {
        assert!(!event.is_empty());
        assert!(!id.is_some_and(|id| id.contains(['\0', '\n', '\r'])));
        assert!(!event.contains(['\n', '\r']) && !data.contains('\r'));
    }
}
