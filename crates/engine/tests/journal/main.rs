//! What the file journal does when bytes, disks and processes do not do what they should.

#[cfg(test)]
mod common;
#[cfg(test)]
mod crash;
#[cfg(test)]
mod damage;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod fixture;
#[cfg(test)]
mod nth;
#[cfg(test)]
mod property;
#[cfg(test)]
mod sectors;
#[cfg(test)]
mod verify;
