//! Each rule of the link by itself.

mod codec;
mod rules;
