//! Those who have connected and not shown yet that they were given a handle: few, and not for long.

use crate::domain::lock;
use crate::socket::Socket;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// How many there may be at a time.
const STRANGERS_MAX: usize = 64;
/// How long each may take to prove itself.
pub(crate) const HELLO_LIMIT: Duration = Duration::from_secs(5);
/// How long each may take while others wait to be let in.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often it is looked whether there is room.
const PAUSE: Duration = Duration::from_millis(5);

/// Why somebody was not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It spoke no TLS where that is needed, or broke it off.
    NoTls,
    /// It did not know the secret, or spoke another language.
    NoSecret,
    /// It said nothing, or went away.
    Silent,
}

/// How many were not let in, by reason.
#[derive(Debug, Default)]
pub(crate) struct Refusals([AtomicU64; 3]);

impl Refusals {
    pub(crate) fn count(&self, why: Refusal) {
        self.0[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn of(&self, why: Refusal) -> u64 {
        self.0[why as usize].load(Ordering::Relaxed)
    }
}

/// Who is waiting at one door.
#[derive(Debug, Default)]
pub(crate) struct Lobby(Mutex<VecDeque<(Arc<Socket>, Instant)>>);

/// As long as this lives, somebody waits.
pub(crate) struct Place {
    lobby: Arc<Lobby>,
    socket: Arc<Socket>,
}

impl Lobby {
    /// Takes somebody in. When all places are taken, the one who has had the most time is sent
    /// away; those behind wait in the system's queue until then.
    pub(crate) fn enter(lobby: &Arc<Self>, socket: &Arc<Socket>) -> Place {
        loop {
            let mut waiting = lock(&lobby.0);
            if waiting.len() < STRANGERS_MAX {
                waiting.push_back((Arc::clone(socket), Instant::now()));
                return Place { lobby: Arc::clone(lobby), socket: Arc::clone(socket) };
            }
            if let Some((oldest, since)) = waiting.front()
                && since.elapsed() > PATIENCE
            {
                // Its thread hears of it, and gives the place free.
                oldest.shut();
            }
            drop(waiting);
            thread::sleep(PAUSE);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.lobby.0).retain(|(socket, _)| !Arc::ptr_eq(socket, &self.socket));
    }
}
