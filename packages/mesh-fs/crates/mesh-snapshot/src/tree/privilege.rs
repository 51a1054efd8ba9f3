//! Policy for the privileges of files that a host writes from a snapshot.
//!
//! Mounts of snapshots have the flags `nosuid` and `nodev`, so the kernel ignores setuid bits, file
//! capabilities and devices in them. A tree that is written into an ordinary directory has no such
//! flags. This module defines the same policy for it.

use crate::tree::attributes::{Attributes, Kind};

/// All permission bits except setuid and setgid.
const PERMISSIONS_MAX: u16 = 0o1777;

/// Extended attributes that do not grant privileges: user attributes and access control lists.
///
/// All others are omitted: `security.*` contains file capabilities, and `trusted.*` is reserved
/// for root.
const XATTR_PREFIXES: [&[u8]; 2] = [b"user.", b"system.posix_acl_"];

impl Attributes {
    /// Returns the permissions without setuid and setgid.
    pub fn unprivileged_permissions(&self) -> u16 {
        self.permissions & PERMISSIONS_MAX
    }
}

impl Kind {
    /// Returns whether the node is a device.
    pub fn is_device(self) -> bool {
        matches!(self, Self::CharDevice | Self::BlockDevice)
    }
}

/// Returns whether an extended attribute with this name does not grant privileges.
pub fn is_unprivileged_xattr(name: &[u8]) -> bool {
    XATTR_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn privileged_extended_attributes_are_recognized() {
        for name in ["user.note", "system.posix_acl_access", "system.posix_acl_default"] {
            assert!(is_unprivileged_xattr(name.as_bytes()), "{name}");
        }
        for name in ["security.capability", "security.ima", "trusted.overlay.opaque", "system.x"] {
            assert!(!is_unprivileged_xattr(name.as_bytes()), "{name}");
        }
    }
}
