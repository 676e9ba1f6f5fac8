//! Bounds on work in progress. ractor's mailboxes are unbounded, so a permit rides in each message that asks for work.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::api::{ErrorClass, RequestError};
use crate::options::NodeLimits;

/// Of one partition: commands and payload bytes between the gateway and the applied entry.
#[derive(Debug)]
pub(crate) struct Admission {
    commands: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
    bytes_max: u32,
}

/// The right to have one command in progress; given back when dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    _command: OwnedSemaphorePermit,
    _bytes: Option<OwnedSemaphorePermit>,
}

impl Admission {
    pub(crate) fn new(limits: &NodeLimits) -> Self {
        Self {
            commands: Arc::new(Semaphore::new(limits.commands_max as usize)),
            bytes: Arc::new(Semaphore::new(limits.in_flight_bytes_max as usize)),
            bytes_max: limits.in_flight_bytes_max,
        }
    }

    /// Never waits: over the bound the caller is told to come back.
    pub(crate) fn admit(&self, bytes: usize) -> Result<Permit, RequestError> {
        let overloaded = |what: &str| {
            let message = format!(
                "too many {what} are in progress in the partition, more than its disk keeps up with; retry after a moment"
            );
            RequestError::new(ErrorClass::Overloaded, "overloaded", message)
        };
        let command = Arc::clone(&self.commands)
            .try_acquire_owned()
            .map_err(|_| overloaded("commands"))?;
        // A push larger than the whole bound is let in alone rather than never.
        let wanted = u32::try_from(bytes).unwrap_or(u32::MAX).min(self.bytes_max);
        let bytes = match wanted {
            0 => None,
            wanted => {
                let bytes = Arc::clone(&self.bytes).try_acquire_many_owned(wanted);
                Some(bytes.map_err(|_| overloaded("payload bytes"))?)
            }
        };
        Ok(Permit {
            _command: command,
            _bytes: bytes,
        })
    }
}
