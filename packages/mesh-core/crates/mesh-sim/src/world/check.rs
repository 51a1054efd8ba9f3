//! The checks of a quiescent world.

use super::World;
use crate::process::Process;

impl World {
    /// Checks the invariants that hold when no event is pending.
    pub(super) fn check(&mut self) {
        if !self.oracle.violations().is_empty() {
            return;
        }
        self.oracle.check_quiet();
        for process in self.lives.iter().flatten() {
            process.check_quiet(self.plan.hosts, &mut self.oracle);
            for (port, owner, incarnation, owner_port) in process.ownership() {
                let life = self.directory.life(owner);
                let of_owner = life.and_then(|life| self.lives[life as usize].as_ref());
                let is_owned = of_owner.is_some_and(|of_owner| {
                    of_owner.incarnation() == incarnation && of_owner.owns(owner_port, port)
                });
                self.oracle.expect(is_owned, || {
                    let id = process.id();
                    format!("{port:?} on {id} outlived {owner_port:?} of {owner}/{incarnation}")
                });
            }
        }
    }

    /// Checks that nothing outlived the program.
    pub(super) fn check_ended(&mut self) {
        if !self.oracle.violations().is_empty() {
            return;
        }
        self.check();
        let is_ended = self.lives[0].as_ref().is_some_and(Process::is_root_ended);
        self.oracle.expect(is_ended, || "the program did not come to its end".into());
        for process in self.lives.iter().flatten() {
            let left = process.ownership().count();
            self.oracle.expect(left == 0, || {
                format!("{left} actors of {} outlived the program", process.id())
            });
        }
    }
}
