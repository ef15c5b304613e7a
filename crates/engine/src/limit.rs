//! Counting items up to a size limit.

/// How many of these lengths together fit a limit; at least one, if there is one.
pub(crate) fn fitting(lengths: impl Iterator<Item = usize>, limit: usize) -> usize {
    let mut sum = 0_usize;
    let mut count = 0;
    for length in lengths {
        sum = sum.saturating_add(length);
        if sum > limit && count > 0 {
            break;
        }
        count += 1;
    }
    count
}
