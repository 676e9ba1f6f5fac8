//! One answer for a request of several parts, each of which is done or refused by itself.

use std::cmp::Reverse;

use crate::api::{ErrorClass, RequestError};

/// The refusal of the call as a whole: there is one only when no part is done. What may be done after all outweighs what is
/// not; else the first counts.
pub(super) fn whole_refusal<T>(outcomes: &[Result<T, RequestError>]) -> Option<&RequestError> {
    let errors: Option<Vec<&RequestError>> = outcomes.iter().map(|outcome| outcome.as_ref().err()).collect();
    errors?
        .into_iter()
        .min_by_key(|error| Reverse(uncertainty(error)))
}

/// How much of the request may be done in spite of the error.
fn uncertainty(error: &RequestError) -> u8 {
    match error.class {
        ErrorClass::OutcomeUnknown => 2,
        ErrorClass::Internal => 1,
        ErrorClass::Invalid
        | ErrorClass::NotFound
        | ErrorClass::Conflict
        | ErrorClass::TooLarge
        | ErrorClass::StorageFull
        | ErrorClass::Overloaded
        | ErrorClass::Unavailable => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(class: ErrorClass, code: &'static str) -> Result<(), RequestError> {
        Err(RequestError::new(class, code, "why"))
    }

    #[test]
    fn call_is_refused_only_when_no_part_is_done() {
        let code = |outcomes: &[Result<(), RequestError>]| whole_refusal(outcomes).map(|error| error.code);
        let full = || refusal(ErrorClass::Overloaded, "overloaded");
        let no_leader = || refusal(ErrorClass::Unavailable, "no_leader");
        let unknown = || refusal(ErrorClass::OutcomeUnknown, "outcome_unknown");
        let gone = || refusal(ErrorClass::NotFound, "queue_deleted");
        assert_eq!(code(&[Ok(()), Ok(())]), None);
        for refused in [full(), no_leader(), unknown(), gone()] {
            assert_eq!(code(&[refused, Ok(())]), None);
        }
        assert_eq!(code(&[full()]), Some("overloaded"));
        assert_eq!(code(&[full(), no_leader()]), Some("overloaded"));
        assert_eq!(code(&[no_leader(), full(), gone()]), Some("no_leader"));
        assert_eq!(code(&[full(), unknown(), no_leader()]), Some("outcome_unknown"));
        let internal = || refusal(ErrorClass::Internal, "internal");
        assert_eq!(code(&[gone(), internal(), unknown()]), Some("outcome_unknown"));
        assert_eq!(code(&[gone(), internal()]), Some("internal"));
    }
}
