//! The machine of a run: its processor, memory, kernel and file system.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::fs::{StatFs, statfs};
use serde::Serialize;

const TMPFS: u64 = 0x0102_1994;
const RAMFS: u64 = 0x8584_58f6;
const OVERLAY: u64 = 0x794c_7630;
/// How long the processor is watched before a run.
const WATCHED: Duration = Duration::from_millis(500);
/// With less of the processor free, figures are about the machine's other work.
const IDLE_MIN: f64 = 0.9;

/// Facts for the reader.
#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) memory: String,
    pub(crate) kernel: String,
    pub(crate) filesystem: String,
    /// The idle share of the processors just before the run, from 0 to 1.
    pub(crate) idle: f64,
    pub(crate) orchestrix: String,
    /// The servers that took part.
    pub(crate) versions: Vec<(&'static str, String)>,
}

impl Machine {
    /// # Errors
    /// When the folder cannot be looked at.
    pub(crate) fn look(data: &Path, versions: Vec<(&'static str, String)>) -> Result<Self> {
        let uname = rustix::system::uname();
        let kernel = format!("{} {}", uname.sysname().to_string_lossy(), uname.release().to_string_lossy());
        let version = env!("CARGO_PKG_VERSION");
        let build = if cfg!(debug_assertions) { "debug build: not for comparing" } else { "release build" };
        Ok(Self {
            processor: value_of("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".to_owned()),
            cores: std::thread::available_parallelism()?.get(),
            memory: value_of("/proc/meminfo", "MemTotal").map_or_else(|| "unknown".to_owned(), |kb| gib(&kb)),
            kernel,
            filesystem: filesystem(data)?,
            idle: idle()?,
            orchestrix: format!("{version} ({build})"),
            versions,
        })
    }

    /// Whether the machine had its hands free.
    pub(crate) fn was_quiet(&self) -> bool {
        self.idle >= IDLE_MIN
    }
}

/// Watches the processor for a moment.
fn idle() -> Result<f64> {
    let look = || fs::read_to_string("/proc/stat");
    let before = look()?;
    std::thread::sleep(WATCHED);
    idle_between(&before, &look()?).context("cannot read /proc/stat")
}

/// The first line counts user, nice, system, idle, iowait and more, over all processors. Waiting for a disk
/// leaves the processor free.
fn idle_between(before: &str, after: &str) -> Option<f64> {
    let counts = |text: &str| {
        let fields = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
        fields.map(|field| field.parse::<f64>().ok()).collect::<Option<Vec<_>>>()
    };
    let (before, after) = (counts(before)?, counts(after)?);
    let spent: Vec<f64> = after.iter().zip(&before).map(|(after, before)| after - before).collect();
    let all: f64 = spent.iter().sum();
    (spent.len() > 4 && all > 0.0).then(|| (spent[3] + spent[4]) / all)
}

/// Refuses a folder that a power cut would empty.
///
/// # Errors
/// When the folder is in memory.
pub(crate) fn check_disk(data: &Path) -> Result<()> {
    let stat = statfs(data).with_context(|| format!("cannot look at {}", data.display()))?;
    if is_memory(&stat) {
        bail!("{} is in memory; choose a folder on a disk with --data", data.display());
    }
    if kind(&stat) != OVERLAY {
        return Ok(());
    }
    // Inside a container the upper layer may be out of sight; then the time of a sync shows it.
    let upper = mount_of(data)?.and_then(|mount| mount.upper);
    match upper.and_then(|upper| statfs(upper).ok()) {
        Some(below) if is_memory(&below) => {
            bail!("{} is an overlay in memory; choose a folder on a disk with --data", data.display())
        }
        Some(_) | None => Ok(()),
    }
}

fn is_memory(stat: &StatFs) -> bool {
    kind(stat) == TMPFS || kind(stat) == RAMFS
}

/// The kernel's number for a kind of file system: 32 bits, whatever its type is on this processor.
fn kind(stat: &StatFs) -> u64 {
    stat.f_type as u64 & 0xffff_ffff
}

fn filesystem(data: &Path) -> Result<String> {
    let mount = mount_of(data)?;
    Ok(mount.map_or_else(|| "unknown".to_owned(), |mount| format!("{} on {}", mount.kind, mount.device)))
}

#[derive(Debug, PartialEq, Eq)]
struct Mount {
    point: String,
    kind: String,
    device: String,
    /// Where an overlay keeps what is written.
    upper: Option<String>,
}

/// The mount that a folder is in.
fn mount_of(folder: &Path) -> Result<Option<Mount>> {
    let folder = folder.canonicalize()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    Ok(find_mount(&mounts, &folder))
}

/// The longest mount point that a folder is below; of equal ones the last, which covers the others.
fn find_mount(mounts: &str, folder: &Path) -> Option<Mount> {
    let holds = |mount: &Mount| folder.starts_with(&mount.point);
    mounts.lines().filter_map(parse_mount).filter(holds).max_by_key(|mount| mount.point.len())
}

fn parse_mount(line: &str) -> Option<Mount> {
    let (place, source) = line.split_once(" - ")?;
    let mut source = source.split(' ');
    let (kind, device, options) = (source.next()?, source.next()?, source.next()?);
    Some(Mount {
        point: place.split(' ').nth(4)?.to_owned(),
        kind: kind.to_owned(),
        device: device.to_owned(),
        upper: options.split(',').find_map(|option| option.strip_prefix("upperdir=")).map(str::to_owned),
    })
}

fn value_of(file: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn gib(kb: &str) -> String {
    let kb: f64 = kb.trim_end_matches(" kB").parse().unwrap_or(0.0);
    format!("{:.1} GiB", kb / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
        22 1 252:1 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
        30 22 0:30 / /data rw shared:2 - overlay overlay rw,lowerdir=/a,upperdir=/run/up,workdir=/w\n\
        31 22 0:31 / /data/fast rw - tmpfs tmpfs rw\n";

    #[test]
    fn the_innermost_mount_counts() {
        let kind = |folder: &str| find_mount(MOUNTS, Path::new(folder)).unwrap().kind;
        assert_eq!(kind("/home"), "ext4");
        assert_eq!(kind("/data/x"), "overlay");
        assert_eq!(kind("/data/fast/x"), "tmpfs");
        assert_eq!(kind("/database"), "ext4");
    }

    #[test]
    fn an_overlay_tells_its_upper_layer() {
        let mount = find_mount(MOUNTS, Path::new("/data")).unwrap();
        assert_eq!(mount.upper.as_deref(), Some("/run/up"));
    }

    #[test]
    fn time_spent_waiting_for_a_disk_is_idle_too() {
        let idle = idle_between("cpu  10 0 10 100 5 0 0\ncpu0 1", "cpu  20 0 20 150 35 0 0\ncpu0 2");
        assert_eq!(idle, Some(0.8));
        assert_eq!(idle_between("cpu  1 2 3 4 5", "cpu  1 2 3 4 5"), None);
    }

    #[test]
    fn a_folder_in_memory_is_refused() {
        let memory = Path::new("/dev/shm");
        if statfs(memory).is_ok_and(|stat| is_memory(&stat)) {
            assert!(check_disk(memory).is_err());
        }
        assert!(check_disk(Path::new("/there/is/no/such/folder")).is_err());
    }
}
