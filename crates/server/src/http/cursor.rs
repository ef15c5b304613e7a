//! Cursors of pages: opaque to callers, and valid only for their own list.

use orchestrix_core::TaskId;
use sha2::{Digest, Sha256};

/// Writes the cursor after a task, for the list that `list` describes.
pub(crate) fn write(list: &str, after: TaskId) -> String {
    format!("{:x}{}", after.0, hex::encode(check(list, after)))
}

/// Reads a cursor of the same list; `None` when it is from somewhere else.
pub(crate) fn read(list: &str, cursor: &str) -> Option<TaskId> {
    let digits = cursor.len().checked_sub(8)?;
    let after = TaskId(u64::from_str_radix(cursor.get(..digits)?, 16).ok()?);
    (write(list, after) == cursor).then_some(after)
}

/// Catches mistakes, not attackers: a cursor gives no right.
fn check(list: &str, after: TaskId) -> [u8; 4] {
    let mut hash = Sha256::new();
    hash.update(after.0.to_be_bytes());
    hash.update(list.as_bytes());
    let digest = hash.finalize();
    [digest[0], digest[1], digest[2], digest[3]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_leads_back_to_its_list_only() {
        for id in [0, 1, 12_345, u64::MAX] {
            let cursor = write("mail", TaskId(id));
            assert_eq!(read("mail", &cursor), Some(TaskId(id)));
            assert_eq!(read("other", &cursor), None);
        }
    }

    #[test]
    fn a_cursor_from_nowhere_is_noticed() {
        for bad in [
            "",
            "1",
            "12345678",
            "ffffffffffffffffffffffffffffffff",
            "zz12345678",
            "ééééé",
            "100000000",
            " 1",
        ] {
            assert_eq!(read("mail", bad), None, "{bad:?}");
        }
        let cursor = write("mail", TaskId(77));
        let mut other = cursor.clone();
        let last = other.pop().unwrap();
        other.push(if last == '0' { '1' } else { '0' });
        assert_eq!(read("mail", &other), None);
    }
}
