//! Bad histories, one for each invariant.
