//! Values as CBOR with numbered fields. A field that is not known is skipped, one that is missing takes its default or is
//! an error; texts go through the constructors that check them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use minicbor::data::Type;
use minicbor::{Decoder, Encoder, decode};
use orchestrix_core::wire::{Backoff, Extended, Outcome};
use orchestrix_core::{Json, Key, LeaseId, Name, OwnerToken, Position, TaskId, TaskState, Term, Timestamp};

pub(super) type Out = Encoder<Vec<u8>>;
pub(super) type Bad = decode::Error;

/// Items that are made room for before they are there.
const ROOM_ITEMS_MAX: usize = 256;

/// A value that can be sent.
pub(super) trait Field: Sized {
    fn put(&self, out: &mut Out);

    /// # Errors
    /// When these bytes are no such value, or one that its constructor refuses.
    fn take(from: &mut Decoder<'_>) -> Result<Self, Bad>;

    /// Not sent at all.
    fn is_missing(&self) -> bool {
        false
    }

    /// The value of a field that was not sent, if it has one.
    fn missing() -> Option<Self> {
        None
    }
}

pub(super) fn encoded(value: &impl Field) -> Vec<u8> {
    let mut out = Encoder::new(Vec::new());
    value.put(&mut out);
    out.into_writer()
}

/// Reads a value that is all there is.
pub(super) fn decoded<T: Field>(bytes: &[u8]) -> Result<T, Bad> {
    let mut from = Decoder::new(bytes);
    let value = T::take(&mut from)?;
    if from.position() < bytes.len() {
        return Err(Bad::message("there is more behind the end"));
    }
    Ok(value)
}

/// Memory takes everything.
pub(super) fn sure<T>(written: Result<T, minicbor::encode::Error<std::convert::Infallible>>) {
    written.map(drop).expect("writing to memory does not fail");
}

pub(super) fn bad(why: impl ToString) -> Bad {
    Bad::message(why.to_string())
}

/// Writes the fields of a value.
macro_rules! put {
    ($out:expr, $($n:literal $field:expr),* $(,)?) => {{
        $crate::link::codec::sure($out.begin_map());
        $($crate::link::codec::put_field($out, $n, $field);)*
        $crate::link::codec::sure($out.end());
    }};
}

/// Reads the fields of a value.
macro_rules! take {
    ($from:expr, { $($n:literal $field:ident),* $(,)? } => $made:expr) => {{
        $(let mut $field = None;)*
        let mut entries = $crate::link::codec::Entries::of($from)?;
        while let Some(number) = entries.next($from)? {
            match number {
                $($n => $crate::link::codec::once(&mut $field, $from)?,)*
                _ => $from.skip()?,
            }
        }
        $(let $field = $crate::link::codec::found($field, stringify!($field))?;)*
        $made
    }};
}

/// A struct as its numbered fields.
macro_rules! numbered {
    ($($name:ty { $($n:literal $field:ident),* $(,)? })*) => {$(
        impl $crate::link::codec::Field for $name {
            fn put(&self, out: &mut $crate::link::codec::Out) {
                $crate::link::codec::put!(out, $($n &self.$field),*);
            }

            fn take(from: &mut minicbor::Decoder<'_>) -> Result<Self, $crate::link::codec::Bad> {
                Ok($crate::link::codec::take!(from, { $($n $field),* } => Self { $($field),* }))
            }
        }
    )*};
}

pub(super) use {numbered, put, take};

pub(super) fn put_field<T: Field>(out: &mut Out, number: u32, value: &T) {
    if !value.is_missing() {
        sure(out.u32(number));
        value.put(out);
    }
}

pub(super) fn once<T: Field>(field: &mut Option<T>, from: &mut Decoder<'_>) -> Result<(), Bad> {
    match field.replace(T::take(from)?) {
        None => Ok(()),
        Some(_) => Err(bad("a field is there twice")),
    }
}

pub(super) fn found<T: Field>(field: Option<T>, name: &'static str) -> Result<T, Bad> {
    field.or_else(T::missing).ok_or_else(|| bad(format!("field {name} is missing")))
}

/// The fields of a value, one after the other.
pub(super) struct Entries {
    /// How many are left; as long as none is the end, if there is no number.
    left: Option<u64>,
}

impl Entries {
    pub(super) fn of(from: &mut Decoder<'_>) -> Result<Self, Bad> {
        Ok(Self { left: from.map()? })
    }

    pub(super) fn next(&mut self, from: &mut Decoder<'_>) -> Result<Option<u32>, Bad> {
        match &mut self.left {
            Some(0) => return Ok(None),
            Some(left) => *left -= 1,
            None if from.datatype()? == Type::Break => {
                from.skip()?;
                return Ok(None);
            }
            None => {}
        }
        from.u32().map(Some)
    }
}

/// Which of several things a value is: its number, and then the thing.
pub(super) fn put_choice(out: &mut Out, number: u32) {
    sure(out.array(2).and_then(|out| out.u32(number)));
}

pub(super) fn take_choice(from: &mut Decoder<'_>) -> Result<u32, Bad> {
    match from.array()? {
        Some(2) => from.u32(),
        Some(_) | None => Err(bad("a choice has a number and a value")),
    }
}

macro_rules! plain {
    ($($name:ty, $method:ident;)*) => {$(
        impl Field for $name {
            fn put(&self, out: &mut Out) {
                sure(out.$method(*self));
            }

            fn take(from: &mut Decoder<'_>) -> Result<Self, Bad> {
                from.$method()
            }
        }
    )*};
}

plain! { u8, u8; u16, u16; u32, u32; u64, u64; i32, i32; f64, f64; bool, bool; }

macro_rules! wrapped {
    ($($name:ident)*) => {$(
        impl Field for $name {
            fn put(&self, out: &mut Out) {
                sure(out.u64(self.0));
            }

            fn take(from: &mut Decoder<'_>) -> Result<Self, Bad> {
                from.u64().map(Self)
            }
        }
    )*};
}

wrapped! { TaskId LeaseId OwnerToken Position Term Timestamp }

macro_rules! checked_text {
    ($($name:ty, $check:path;)*) => {$(
        impl Field for $name {
            fn put(&self, out: &mut Out) {
                sure(out.str(self.as_str()));
            }

            fn take(from: &mut Decoder<'_>) -> Result<Self, Bad> {
                $check(from.str()?).map_err(bad)
            }
        }
    )*};
}

checked_text! { Name, Name::new; Key, Key::new; Json, Json::parse; }

impl Field for String {
    fn put(&self, out: &mut Out) {
        sure(out.str(self));
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Bad> {
        from.str().map(str::to_owned)
    }
}

impl Field for usize {
    fn put(&self, out: &mut Out) {
        sure(out.u64(*self as u64));
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Bad> {
        Self::try_from(from.u64()?).map_err(bad)
    }
}

impl Field for [u8; 32] {
    fn put(&self, out: &mut Out) {
        sure(out.bytes(self));
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Bad> {
        from.bytes()?.try_into().map_err(bad)
    }
}

impl Field for IpAddr {
    fn put(&self, out: &mut Out) {
        match self {
            Self::V4(address) => sure(out.bytes(&address.octets())),
            Self::V6(address) => sure(out.bytes(&address.octets())),
        }
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Bad> {
        let bytes = from.bytes()?;
        let four = <[u8; 4]>::try_from(bytes).map(Self::from);
        four.or_else(|_| <[u8; 16]>::try_from(bytes).map(Self::from)).map_err(bad)
    }
}

impl Field for TaskState {
    fn put(&self, out: &mut Out) {
        sure(out.encode(self));
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Bad> {
        from.decode()
    }
}

impl<T: Field> Field for Option<T> {
    fn put(&self, out: &mut Out) {
        match self {
            Some(value) => value.put(out),
            None => sure(out.null()),
        }
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Bad> {
        if from.datatype()? == Type::Null {
            from.null()?;
            return Ok(None);
        }
        T::take(from).map(Some)
    }

    fn is_missing(&self) -> bool {
        self.is_none()
    }

    fn missing() -> Option<Self> {
        Some(None)
    }
}

impl<T: Field> Field for Box<T> {
    fn put(&self, out: &mut Out) {
        (**self).put(out);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Bad> {
        T::take(from).map(Self::new)
    }
}

impl<T: Field> Field for Vec<T> {
    fn put(&self, out: &mut Out) {
        sure(out.array(self.len() as u64));
        self.iter().for_each(|item| item.put(out));
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Bad> {
        let items = length(from.array()?, from)?;
        let mut list = Self::with_capacity(items.min(ROOM_ITEMS_MAX));
        for _ in 0..items {
            list.push(T::take(from)?);
        }
        Ok(list)
    }
}

impl Field for BTreeMap<u32, u32> {
    fn put(&self, out: &mut Out) {
        sure(out.map(self.len() as u64));
        self.iter().for_each(|(key, value)| sure(out.u32(*key).and_then(|out| out.u32(*value))));
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Bad> {
        let items = length(from.map()?, from)?;
        let mut map = Self::new();
        for _ in 0..items {
            if map.insert(from.u32()?, from.u32()?).is_some() {
                return Err(bad("a key is there twice"));
            }
        }
        Ok(map)
    }
}

impl<A: Field, B: Field> Field for (A, B) {
    fn put(&self, out: &mut Out) {
        sure(out.array(2));
        self.0.put(out);
        self.1.put(out);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Bad> {
        match from.array()? {
            Some(2) => Ok((A::take(from)?, B::take(from)?)),
            Some(_) | None => Err(bad("a pair has two values")),
        }
    }
}

/// How many items follow. Each has a byte at least, so there are no more of them than bytes.
fn length(said: Option<u64>, from: &Decoder<'_>) -> Result<usize, Bad> {
    let left = from.input().len() - from.position();
    let items = said.and_then(|items| usize::try_from(items).ok()).filter(|items| *items <= left);
    items.ok_or_else(|| bad("a list is longer than what follows"))
}

numbered! {
    Backoff { 0 base_ms, 1 factor, 2 max_ms }
    Outcome { 0 id, 1 state, 2 not_before_at, 3 cancel_requested }
    Extended { 0 lease_ms, 1 cancel_requested, 2 timeout_ms }
}
