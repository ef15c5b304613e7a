//! Task logs in files: across restarts, crashes, deletions, full and failing disks.

#[cfg(test)]
mod common;
#[cfg(test)]
mod crash;
#[cfg(test)]
mod damage;
#[cfg(test)]
mod failing;
#[cfg(test)]
mod full;
#[cfg(test)]
mod keeping;
#[cfg(test)]
mod syncs;
