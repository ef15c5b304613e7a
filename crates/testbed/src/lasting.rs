//! A server for all tests of a program. Nothing that is kept for the whole of a program is ever dropped, so the server
//! is watched by a process that ends it, and removes its folder, when the program has ended, however it did.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::error::failed;
use crate::{Error, Place, Recipe, Result, eventually};

/// Ends when its standard input does: then the program is gone. `$0` is the folder, the rest is the server.
const WATCH: &str = r#"
"$@" </dev/null >"$0/log" 2>&1 &
server=$!
echo "$server" >"$0/pid"
cat
kill -9 "$server"
wait "$server"
rm -rf "$0"
"#;

/// A server that ends after the last test.
#[derive(Debug)]
pub struct Lasting {
    place: Place,
    /// Has the other end of what the watcher reads.
    _watcher: Child,
}

impl Lasting {
    /// Starts a server and waits until it is ready.
    ///
    /// # Errors
    /// When it is not installed or does not start.
    pub fn start(recipe: &Recipe) -> Result<Self> {
        let folder = tempfile::tempdir().map_err(failed("make a folder"))?.keep();
        recipe.prepare(&folder)?;
        let place = Place { folder, address: recipe.address };
        let server = recipe.command(&place)?;
        let mut watcher = Command::new("sh");
        watcher.arg("-c").arg(WATCH).arg(&place.folder).arg(server.get_program()).args(server.get_args());
        watcher.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let watcher = watcher.spawn().map_err(failed("start sh"))?;
        let lasting = Self { place, _watcher: watcher };
        eventually(&format!("{} is ready", recipe.name), || {
            if lasting.has_ended() {
                return Some(Err(Error::new(format!("{} ended: {}", recipe.name, lasting.log()))));
            }
            recipe.is_ready(&lasting.place).then_some(Ok(()))
        })?;
        Ok(lasting)
    }

    /// Where it keeps its files.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.place.folder
    }

    /// Whether the server is a process that only its watcher still knows.
    fn has_ended(&self) -> bool {
        let pid = std::fs::read_to_string(self.place.folder.join("pid")).unwrap_or_default();
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
        stat.contains(") Z ")
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.place.folder.join("log")).unwrap_or_default()
    }
}
