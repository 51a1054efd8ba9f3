//! The addresses of this machine, and the order in which the addresses of another one are tried.
#![expect(unsafe_code, reason = "walks the list that the system gives")]

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The maximum number of addresses in a handle.
const ADDRESSES_MAX: usize = 16;
/// The name prefixes of bridges and tunnels for containers and virtual machines within one machine.
/// Different machines often use the same addresses on them.
const INNER_NAMES: [&str; 9] =
    ["docker", "br-", "virbr", "cni", "flannel", "cilium", "lxc", "veth", "podman"];

/// One address of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    /// The name of the interface.
    pub(crate) name: String,
    /// Its address.
    pub(crate) address: IpAddr,
    /// The length of the network prefix, in bits.
    pub(crate) prefix_len: u32,
}

/// All addresses of interfaces that are up.
pub(crate) fn interfaces() -> io::Result<Vec<Interface>> {
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the system sets the pointer, and the list is freed below.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut next = first;
    // SAFETY: the list is valid until it is freed, and ends with a null pointer.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        if entry.ifa_flags & libc::IFF_UP as libc::c_uint == 0 {
            continue;
        }
        // SAFETY: the pointers are addresses in the list, or null.
        let (address, mask) =
            unsafe { (address_of(entry.ifa_addr), address_of(entry.ifa_netmask)) };
        let Some(address) = address else { continue };
        // SAFETY: the pointer is a null-terminated name in the list.
        let name = unsafe { std::ffi::CStr::from_ptr(entry.ifa_name) };
        let name = name.to_string_lossy().into_owned();
        let prefix_len = mask.map_or(0, |mask| match mask {
            IpAddr::V4(mask) => mask.to_bits().leading_ones(),
            IpAddr::V6(mask) => mask.to_bits().leading_ones(),
        });
        found.push(Interface { name, address, prefix_len });
    }
    // SAFETY: the list was returned by `getifaddrs`, and no reference to it remains.
    unsafe { libc::freeifaddrs(first) };
    Ok(found)
}

/// # Safety
/// The pointer is null, or points to an address of the family that it contains.
unsafe fn address_of(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: the caller guarantees it.
    unsafe {
        match i32::from(address.as_ref()?.sa_family) {
            libc::AF_INET => {
                let four = address.cast::<libc::sockaddr_in>().read_unaligned();
                Some(Ipv4Addr::from_bits(u32::from_be(four.sin_addr.s_addr)).into())
            }
            libc::AF_INET6 => {
                let six = address.cast::<libc::sockaddr_in6>().read_unaligned();
                Some(Ipv6Addr::from(six.sin6_addr.s6_addr).into())
            }
            _ => None,
        }
    }
}

/// The addresses of the owner in a handle, best first. Loopback addresses, which only the machine
/// itself can use, come last. Addresses that require an interface name are omitted.
pub(crate) fn to_be_tried(mut interfaces: Vec<Interface>) -> Vec<IpAddr> {
    interfaces.retain(|one| match one.address {
        IpAddr::V4(four) => !four.is_unspecified(),
        IpAddr::V6(six) => !six.is_unicast_link_local(),
    });
    interfaces.sort_by_key(rank);
    let mut addresses: Vec<IpAddr> = Vec::new();
    for Interface { address, .. } in interfaces {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    let (here, mut there): (Vec<_>, Vec<_>) = addresses.into_iter().partition(IpAddr::is_loopback);
    there.truncate(ADDRESSES_MAX - here.len().min(2));
    there.extend(here.into_iter().take(2));
    there
}

/// The addresses of a process on another machine in the order in which this machine tries them.
pub(crate) fn nearest_first(theirs: &[IpAddr], ours: &[Interface]) -> Vec<IpAddr> {
    let is_ours = |address: &IpAddr| ours.iter().any(|one| one.address == *address);
    let elsewhere = |address: &&IpAddr| !address.is_loopback() && !is_ours(address);
    let mut addresses: Vec<IpAddr> = theirs.iter().filter(elsewhere).copied().collect();
    // The sort is stable: within one network, the order of the owner is kept.
    addresses.sort_by_key(|address| {
        let shared = ours.iter().filter(|one| shares_network(one, *address));
        shared.map(rank).min().map_or((2, 0), |rank| if rank.0 < 2 { (0, 0) } else { (3, rank.0) })
    });
    addresses
}

/// A sort key, which is smaller for addresses that other machines are more likely to reach.
fn rank(one: &Interface) -> (u8, bool) {
    let is_inner = INNER_NAMES.iter().any(|name| one.name.starts_with(name));
    let class = match one.address {
        address if address.is_loopback() => 4,
        IpAddr::V4(four) if four.is_link_local() => 3,
        _ if is_inner => 2,
        _ => 0,
    };
    (class, one.address.is_ipv6())
}

fn shares_network(one: &Interface, address: IpAddr) -> bool {
    let len = one.prefix_len;
    if len == 0 {
        return false;
    }
    match (one.address, address) {
        (IpAddr::V4(ours), IpAddr::V4(theirs)) => {
            len <= 32 && (ours.to_bits() ^ theirs.to_bits()).leading_zeros() >= len
        }
        (IpAddr::V6(ours), IpAddr::V6(theirs)) => {
            len <= 128 && (ours.to_bits() ^ theirs.to_bits()).leading_zeros() >= len
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, address: &str, prefix_len: u32) -> Interface {
        let address = address.parse().expect("an address");
        Interface { name: name.to_owned(), address, prefix_len }
    }

    fn addresses(text: &str) -> Vec<IpAddr> {
        text.split_whitespace().map(|one| one.parse().expect("an address")).collect()
    }

    #[test]
    fn widely_reachable_addresses_come_first() {
        let found = to_be_tried(vec![
            interface("lo", "127.0.0.1", 8),
            interface("lo", "::1", 128),
            interface("docker0", "172.17.0.1", 16),
            interface("eth1", "169.254.3.4", 16),
            interface("eth0", "fe80::1", 64),
            interface("eth0", "2001:db8::5", 64),
            interface("eth0", "10.0.0.5", 24),
        ]);
        let wanted = "10.0.0.5 2001:db8::5 172.17.0.1 169.254.3.4 127.0.0.1 ::1";
        assert_eq!(found, addresses(wanted));
    }

    #[test]
    fn a_shared_network_comes_first_unless_it_is_a_container_bridge() {
        let ours = [
            interface("lo", "127.0.0.1", 8),
            interface("docker0", "172.17.0.1", 16),
            interface("ib0", "192.168.7.2", 24),
            interface("eth0", "10.0.0.6", 24),
        ];
        let theirs = addresses("10.1.0.5 192.168.7.9 172.17.0.1 172.17.0.2 127.0.0.1");
        let wanted = addresses("192.168.7.9 10.1.0.5 172.17.0.2");
        assert_eq!(nearest_first(&theirs, &ours), wanted);
    }

    #[test]
    fn the_number_of_addresses_in_a_handle_is_limited() {
        let many = (0..200).map(|at| interface("eth0", &format!("10.0.0.{at}"), 24));
        let found = to_be_tried(many.chain([interface("lo", "127.0.0.1", 8)]).collect());
        assert_eq!(found.len(), ADDRESSES_MAX);
        assert!(found.last().is_some_and(IpAddr::is_loopback));
    }

    #[test]
    fn the_interfaces_include_loopback() {
        let found = interfaces().expect("a list of interfaces");
        assert!(found.iter().any(|one| one.address.is_loopback()), "{found:?}");
    }
}
