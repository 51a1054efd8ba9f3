//! The sockets of the node: how they are opened, read, written and closed.

use super::local_links::socket_path;
use super::parker::Parker;
use super::poller::WRITABLE;
use super::waiting::Woken;
use super::wire::{PeerLocation, Wire, Written, lock};
use super::{CutOff, DeferredEffects, Engine};
use crate::node::{LinkId, Node};
use mesh_wire::id::ProcId;
use rustix::event::epoll;
use rustix::io::Errno;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Engine {
    /// Reads one connection; returns which waiters other than `me` were woken.
    pub(super) fn read_link(&self, link: LinkId, me: Option<&Arc<Parker>>) -> Woken {
        let mut woken = Woken::default();
        let Some(wire) = lock(&self.shared).wires.get(&link).cloned() else { return woken };
        let end = wire.read(&*self.descriptors, |frames| {
            let mut deferred = DeferredEffects::default();
            {
                let mut shared = self.enter();
                if wire.location() == PeerLocation::OtherHost {
                    shared.node.note_activity(link);
                }
                for frame in frames.drain(..) {
                    shared.node.receive(link, frame);
                }
                shared.collect(&mut deferred, &*self.descriptors);
            }
            for (_, waiter) in &deferred.wake {
                waiter.note(me, &mut woken);
            }
            self.finish(deferred);
        });
        if let Err(error) = end {
            self.note_shortage(&error);
            self.drop_link(link, &wire);
        }
        woken
    }

    pub(super) fn drop_link(&self, link: LinkId, wire: &Wire) {
        let peer = {
            let mut shared = lock(&self.shared);
            if shared.wires.remove(&link).is_none() {
                return;
            }
            shared.node.peer_of(link)
        };
        if wire.location() == PeerLocation::OtherHost
            && let Some(peer) = peer
        {
            self.acknowledgements.note(peer.host, wire.stream());
        }
        self.unwatch(wire);
        self.with_node(|node| node.link_down(link));
    }

    /// Removes a socket from both epoll sets; it is closed with its last reference.
    pub(super) fn unwatch(&self, wire: &Wire) {
        // Another thread that noticed the same end may have removed either.
        let _ = epoll::delete(&self.lead.epoll, wire.stream());
        if let Some(watch) = wire.unblock() {
            let _ = epoll::delete(&self.io.epoll, &watch);
        }
        let _ = epoll::delete(&self.io.epoll, wire.stream());
        wire.shut_down();
    }

    pub(super) fn flush(&self, link: LinkId, wire: &Arc<Wire>) {
        match wire.flush(&*self.descriptors) {
            Written::All | Written::Elsewhere => {}
            Written::Broken => self.drop_link(link, wire),
            Written::Blocked => {
                let token = epoll::EventData::new_u64(u64::from(link.0) | WRITABLE);
                let flags = epoll::EventFlags::OUT | epoll::EventFlags::ONESHOT;
                let copy = match rustix::io::fcntl_dupfd_cloexec(wire.stream(), 3) {
                    Ok(copy) => copy,
                    Err(error) => {
                        self.note_shortage(&error.into());
                        return self.drop_link(link, wire);
                    }
                };
                let is_watched = epoll::add(&self.io.epoll, &copy, token, flags);
                wire.set_watch(copy);
                if is_watched.is_err() {
                    self.drop_link(link, wire);
                }
            }
        }
    }

    pub(super) fn connect(&self, peer: ProcId) {
        if peer.host != self.me.host {
            return self.connect_remote(peer);
        }
        if self.is_short() {
            return self.with_node(|node| node.connect_failed(peer));
        }
        let stream = UnixStream::connect(socket_path(&self.dir, peer));
        match stream.and_then(Wire::local).map(Arc::new) {
            Ok(wire) => drop(self.add_wire(wire, |node| node.connected(peer))),
            Err(error) if self.note_shortage(&error) => {
                self.with_node(|node| node.connect_failed(peer));
            }
            Err(error) if peer == self.me.host.agent() && is_gone(&error) => {
                (self.on_cut_off)(CutOff::Agent);
            }
            Err(_) => self.with_node(|node| node.connect_failed(peer)),
        }
    }

    /// Registers a socket with the node and both epoll sets, the leader's first.
    pub(super) fn add_wire(
        &self,
        wire: Arc<Wire>,
        introduce: impl FnOnce(&mut Node) -> LinkId,
    ) -> LinkId {
        let mut deferred = DeferredEffects::default();
        let link = {
            let mut shared = lock(&self.shared);
            let link = introduce(&mut shared.node);
            shared.wires.insert(link, Arc::clone(&wire));
            shared.collect(&mut deferred, &*self.descriptors);
            link
        };
        let token = u64::from(link.0);
        let is_watched =
            self.lead.add(wire.stream(), token).and_then(|()| self.io.add(wire.stream(), token));
        self.finish(deferred);
        if let Err(error) = is_watched {
            self.drop_link(link, &wire);
            self.check_descriptors(Errno::from_io_error(&error));
        }
        link
    }

    /// Wakes the IO thread.
    pub(super) fn wake_io(&self) {
        self.check_descriptors(self.io.waker.try_wake().err());
    }

    /// Reports that this process is cut off if an error shows that its own descriptors are closed.
    pub(super) fn check_descriptors(&self, error: Option<Errno>) {
        let is_closed = matches!(error, Some(Errno::BADF | Errno::INVAL));
        if is_closed && !self.is_closed.load(Ordering::SeqCst) {
            (self.on_cut_off)(CutOff::Descriptors);
        }
    }

    pub(super) fn writable(&self, link: LinkId) {
        let Some(wire) = lock(&self.shared).wires.get(&link).cloned() else { return };
        if let Some(watch) = wire.unblock() {
            // It is registered: this event came from it.
            let _ = epoll::delete(&self.io.epoll, &watch);
        }
        self.flush(link, &wire);
    }
}

/// Whether an error proves that a socket has no listener any more.
///
/// Any other error may be temporary, such as a lack of descriptors in this process.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound)
}
