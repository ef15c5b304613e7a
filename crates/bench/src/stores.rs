//! The servers that engines stand on, on the disk of the run.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;
use orchestrix_engine::Shared;
use orchestrix_engine::redis::RedisPlace;
use orchestrix_engine::s3::S3Place;
use orchestrix_engine::sql::SqlPlace;
use orchestrix_testbed as testbed;
use orchestrix_testbed::{PASSWORD, PLACE, Recipe, SeaweedFs, Store};
use serde::Serialize;

/// The kinds of servers that engines stand on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lower")]
pub(crate) enum Kind {
    Redis,
    MariaDb,
    Postgres,
    SeaweedFs,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] = [Self::Redis, Self::MariaDb, Self::Postgres, Self::SeaweedFs];

    fn server(self) -> testbed::Kind {
        match self {
            Self::Redis => testbed::Kind::Redis,
            Self::MariaDb => testbed::Kind::MariaDb,
            Self::Postgres => testbed::Kind::Postgres,
            Self::SeaweedFs => testbed::Kind::SeaweedFs,
        }
    }

    pub(crate) fn label(self) -> &'static str {
        self.server().label()
    }

    /// The raw load on the server, without a coordinator.
    pub(crate) fn raw(self) -> &'static str {
        match self {
            Self::Redis => "`XADD`",
            Self::MariaDb | Self::Postgres => "`INSERT`",
            Self::SeaweedFs => "`PUT`",
        }
    }

    /// # Errors
    /// When it is not installed.
    pub(crate) fn version(self) -> Result<String> {
        Ok(self.server().version()?)
    }

    /// Starts one in an empty folder and waits until it takes requests.
    ///
    /// # Errors
    /// When it is not installed or does not start.
    pub(crate) fn start(self, folder: &Path) -> Result<Store> {
        fs::create_dir_all(folder)?;
        // Servers that refuse to run as root have to get through to their folder.
        if let Some(parent) = folder.parent() {
            fs::set_permissions(parent, fs::Permissions::from_mode(0o711))?;
        }
        Ok(Store::start_in(folder, self.server(), self.recipe())?)
    }

    /// With the memory and the disk of a run, and S3 without signatures for the raw client.
    fn recipe(self) -> Recipe {
        match self {
            Self::Redis | Self::Postgres => self.server().recipe(),
            Self::MariaDb => testbed::mariadb(&["--skip-log-bin", "--innodb-buffer-pool-size=128M"]),
            Self::SeaweedFs => {
                let anonymous = SeaweedFs::anonymous(&["Admin", "Read", "Write", "List"]);
                let seaweedfs = SeaweedFs::new(PLACE, &[testbed::Kind::bucket_user(PASSWORD), anonymous]);
                seaweedfs.recipe().set(&["-master.volumeSizeLimitMB=256", "-volume.max=40"])
            }
        }
    }
}

/// The engine on a server, by the address that nodes get.
///
/// # Errors
/// When the server does not let us in.
pub(crate) fn engine(url: &str, timeout: Duration) -> Result<Arc<dyn Shared>> {
    Ok(match url.split("://").next() {
        Some("redis") => Arc::new(RedisPlace::connect(url, timeout)?),
        Some("s3") => Arc::new(S3Place::connect(url, timeout)?),
        _ => Arc::new(SqlPlace::connect(url, timeout)?),
    })
}
