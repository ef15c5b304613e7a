//! What owners of leases ask about the bus, and its answers, as CBOR.
//!
//! **Invariant:** what the services of a leader ask, and what they are answered, stays in its process: nothing here reads or
//! writes it.

use minicbor::Decoder;
use orchestrix_core::limits::{BATCH_PAYLOAD_BYTES_MAX, OWNED_LEASES_MAX};
use orchestrix_core::wire::bus::MESSAGE_BYTES_MAX;
use orchestrix_core::{Claim, Command, OwnershipCommand, Refusal};

use crate::bus::{BusAnswer, OwnedLease, OwnerAsk, Report, ReportItem, Reported, Said};
use crate::link::codec::{Bad, Field, Out, bad, numbered, put, put_choice, take, take_choice};

/// Why something is not written to a link.
pub(super) const LOCAL: &str = "what a leader asks itself does not leave its process";

numbered! {
    Claim { 0 lease, 1 previous }
    Report { 0 node, 1 own, 2 items, 3 after }
    ReportItem { 0 task, 1 lease, 2 worker, 3 said }
    Reported { 0 own, 1 items, 2 owned, 3 more, 4 mean }
    OwnedLease { 0 task, 1 lease, 2 attempt }
}

impl Field for OwnerAsk {
    fn put(&self, out: &mut Out) {
        match self {
            Self::Join { node, incarnation, address } => {
                put_choice(out, 0);
                put!(out, 0 node, 1 incarnation, 2 address);
            }
            Self::Drain { node } => {
                put_choice(out, 1);
                put!(out, 0 node);
            }
            Self::Leave { node } => {
                put_choice(out, 2);
                put!(out, 0 node);
            }
            Self::Report(report) => {
                put_choice(out, 3);
                report.put(out);
            }
            Self::Release { node, leases } => {
                put_choice(out, 4);
                put!(out, 0 node, 1 leases);
            }
        }
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Bad> {
        Ok(match take_choice(from)? {
            0 => {
                take!(from, { 0 node, 1 incarnation, 2 address } => Self::Join { node, incarnation, address })
            }
            1 => take!(from, { 0 node } => Self::Drain { node }),
            2 => take!(from, { 0 node } => Self::Leave { node }),
            3 => Self::Report(Report::take(from)?),
            4 => take!(from, { 0 node, 1 leases } => Self::Release { node, leases }),
            _ => return Err(bad("unknown ask of an owner")),
        })
    }
}

impl Field for Said {
    fn put(&self, out: &mut Out) {
        match self {
            Self::Running { progress, note } => {
                put_choice(out, 0);
                put!(out, 0 progress, 1 note);
            }
            Self::Completed { result } => {
                put_choice(out, 1);
                put!(out, 0 result);
            }
            Self::Failed { error, retry } => {
                put_choice(out, 2);
                put!(out, 0 error, 1 retry);
            }
            Self::Released => {
                put_choice(out, 3);
                put!(out,);
            }
        }
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Bad> {
        Ok(match take_choice(from)? {
            0 => take!(from, { 0 progress, 1 note } => Self::Running { progress, note }),
            1 => take!(from, { 0 result } => Self::Completed { result }),
            2 => take!(from, { 0 error, 1 retry } => Self::Failed { error, retry }),
            3 => take!(from, {} => Self::Released),
            _ => return Err(bad("unknown word of a worker")),
        })
    }
}

impl Field for Result<(), Refusal> {
    fn put(&self, out: &mut Out) {
        match self {
            Ok(()) => {
                put_choice(out, 0);
                put!(out,);
            }
            Err(refusal) => {
                put_choice(out, 1);
                refusal.put(out);
            }
        }
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Bad> {
        match take_choice(from)? {
            0 => Ok(take!(from, {} => Ok(()))),
            1 => Refusal::take(from).map(Err),
            _ => Err(bad("unknown outcome")),
        }
    }
}

/// The attempt that a claim is about.
impl Field for Result<u32, Refusal> {
    fn put(&self, out: &mut Out) {
        match self {
            Ok(attempt) => {
                put_choice(out, 0);
                put!(out, 0 attempt);
            }
            Err(refusal) => {
                put_choice(out, 1);
                refusal.put(out);
            }
        }
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Bad> {
        match take_choice(from)? {
            0 => Ok(take!(from, { 0 attempt } => Ok(attempt))),
            1 => Refusal::take(from).map(Err),
            _ => Err(bad("unknown outcome")),
        }
    }
}

impl Field for BusAnswer {
    fn put(&self, out: &mut Out) {
        match self {
            Self::Done => {
                put_choice(out, 0);
                put!(out,);
            }
            Self::Joined(token) => {
                put_choice(out, 1);
                token.put(out);
            }
            Self::Gone => {
                put_choice(out, 2);
                put!(out,);
            }
            Self::Reported(reported) => {
                put_choice(out, 3);
                reported.put(out);
            }
            Self::Pulled(_) | Self::Heard(_) => unreachable!("{LOCAL}"),
        }
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Bad> {
        Ok(match take_choice(from)? {
            0 => take!(from, {} => Self::Done),
            1 => Self::Joined(Field::take(from)?),
            2 => take!(from, {} => Self::Gone),
            3 => Self::Reported(Reported::take(from)?),
            _ => return Err(bad("unknown answer about the bus")),
        })
    }
}

/// Checks an ask of an owner. What one worker says is checked when it is decided: what is not valid is refused alone.
pub(super) fn validate(ask: &OwnerAsk) -> Result<(), Refusal> {
    ask.validate()?;
    match ask {
        OwnerAsk::Join { node, incarnation, address } => {
            let (node, incarnation, address) = (node.to_string(), incarnation.clone(), address.clone());
            Command::from(OwnershipCommand::Join { node, incarnation, address }).validate()
        }
        OwnerAsk::Drain { .. } | OwnerAsk::Leave { .. } | OwnerAsk::Release { .. } => Ok(()),
        OwnerAsk::Report(report) => {
            // No message of a worker is longer.
            let longest = report.items.iter().map(text_bytes).max().unwrap_or(0);
            fits(longest, MESSAGE_BYTES_MAX)?;
            fits(report.items.iter().map(text_bytes).sum(), BATCH_PAYLOAD_BYTES_MAX)
        }
    }
}

fn text_bytes(item: &ReportItem) -> usize {
    match &item.said {
        Said::Running { note, .. } => note.as_ref().map_or(0, String::len),
        Said::Completed { result } => result.as_ref().map_or(0, |result| result.as_str().len()),
        Said::Failed { error, .. } => error.len(),
        Said::Released => 0,
    }
}

fn fits(bytes: usize, max: usize) -> Result<(), Refusal> {
    if bytes > max {
        return Err(Refusal::TooLarge { field: "items", bytes, max });
    }
    Ok(())
}

/// What kind of answer an ask of an owner calls for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WantedOfBus {
    Joined,
    Done,
    /// With so many results for claims and items.
    Reported(usize, usize),
}

impl WantedOfBus {
    pub(super) fn by(ask: &OwnerAsk) -> Self {
        match ask {
            OwnerAsk::Join { .. } => Self::Joined,
            OwnerAsk::Drain { .. } | OwnerAsk::Leave { .. } | OwnerAsk::Release { .. } => Self::Done,
            OwnerAsk::Report(report) => Self::Reported(report.own.len(), report.items.len()),
        }
    }

    pub(super) fn is(self, answer: &BusAnswer) -> bool {
        match answer {
            BusAnswer::Done => self == Self::Done,
            BusAnswer::Joined(_) => self == Self::Joined,
            BusAnswer::Gone => self != Self::Joined,
            BusAnswer::Reported(Reported { own, items, owned, .. }) => {
                self == Self::Reported(own.len(), items.len()) && owned.len() <= OWNED_LEASES_MAX
            }
            BusAnswer::Pulled(_) | BusAnswer::Heard(_) => false,
        }
    }
}

/// Whether an answer may leave the process.
pub(super) fn may_leave(answer: &BusAnswer) -> bool {
    match answer {
        BusAnswer::Done | BusAnswer::Joined(_) | BusAnswer::Gone | BusAnswer::Reported(_) => true,
        BusAnswer::Pulled(_) | BusAnswer::Heard(_) => false,
    }
}
