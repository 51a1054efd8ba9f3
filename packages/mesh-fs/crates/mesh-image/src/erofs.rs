//! Mounting of images, from files if the kernel supports it, and otherwise from loop devices.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use mesh_snapshot::{Attributes, Kind};
use rustix::io::Errno;

use crate::error::ImageError;
use crate::format::{
    self, BLOCK, ENTRY_LEN, INODE_ALIGNMENT, INODES_AT, Inode, Layout, Superblock,
};
use crate::loop_device::LoopDevice;
use crate::mount_folder::MountFolder;
use crate::mount_stack::{MountFailure, make};
use crate::writer::Image;

const KIND: &str = "erofs";
const WHAT: &str = "mounting an erofs image";
const REMEDY: &str = "run as root, on a kernel with erofs (modprobe erofs) and, before Linux 6.12, \
                      loop devices; or use backend=\"fuse\"";

/// Creates a detached mount of an image.
pub(crate) fn mount(image: &Image) -> Result<OwnedFd, ImageError> {
    let forbidden = |message| ImageError::Forbidden { what: WHAT, message, remedy: REMEDY };
    match mount_files(&image.path, image.blocks.as_deref()) {
        Ok(mount) => Ok(mount),
        // ENOTBLK: this kernel mounts block devices only.
        Err(MountFailure { errno: Errno::NOTBLK, .. }) => {
            let open = |path: &Path| {
                LoopDevice::open(path).map_err(|error| forbidden(format!("a loop device: {error}")))
            };
            let first = open(&image.path)?;
            let second = image.blocks.as_deref().map(open).transpose()?;
            mount_files(first.path(), second.as_ref().map(LoopDevice::path))
                .map_err(|MountFailure { message, .. }| forbidden(message))
        }
        Err(MountFailure { message, .. }) => Err(forbidden(message)),
    }
}

fn mount_files(image: &Path, blocks: Option<&Path>) -> Result<OwnedFd, MountFailure> {
    let mut options = vec![("source", image.as_os_str())];
    options.extend(blocks.map(|blocks| ("device", blocks.as_os_str())));
    make(KIND, &options, false)
}

/// Checks whether images can be mounted on this machine, by mounting an empty one.
pub(crate) fn try_out(folder: &MountFolder) -> Result<(), ImageError> {
    let path = folder.path().join("empty");
    fs::write(&path, empty()).map_err(ImageError::system("write an image", &path))?;
    let tried = mount(&Image { path: path.clone(), blocks: None });
    // If the file cannot be removed now, it is removed with the folder.
    let _: io::Result<()> = fs::remove_file(&path);
    tried.map(drop)
}

/// Returns an image of an empty directory.
fn empty() -> Vec<u8> {
    let root = (INODES_AT / INODE_ALIGNMENT) as u16;
    let mut out =
        format::head(&Superblock { root, inodes: 1, blocks: 1, file_blocks: 0, has_maps: false });
    let names = [".", ".."];
    let mut listing = Vec::new();
    let mut name_at = (names.len() * ENTRY_LEN) as u16;
    for name in names {
        listing.extend(u64::from(root).to_le_bytes());
        listing.extend(name_at.to_le_bytes());
        listing.extend([format::entry_type(Kind::Directory), 0]);
        name_at += name.len() as u16;
    }
    names.iter().for_each(|name| listing.extend(name.bytes()));
    let layout = Layout::Inline { blocks: 0, tail: listing.len() as u16 };
    let inode = Inode { layout, start: 0, size: listing.len() as u64, xattrs_len: 0, number: 1 };
    let attributes = Attributes {
        kind: Kind::Directory,
        permissions: 0o755,
        uid: 0,
        gid: 0,
        size: 0,
        modified_s: 0,
        modified_ns: 0,
        links: 2,
        device: 0,
        stored: 0,
    };
    format::inode(&mut out, &inode, &attributes);
    out.extend(listing);
    out.resize(BLOCK as usize, 0);
    out
}
