//! Whose a connection on the loopback is, where nobody has to prove himself.
//!
//! Every user of a machine reaches its loopback, and whoever talks to a process of the mesh can run
//! code as its user. So both sides ask the kernel who owns the socket at the other end: one of
//! ours, or of root, who needs no socket to do as we do.

use rustix::process::geteuid;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Where the kernel lists the TCP sockets of our network.
const TABLES: [&str; 2] = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];
/// State of a socket that listens.
const LISTENS: u8 = 0x0A;
const ROOT: u32 = 0;

/// One line of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Socket {
    local: SocketAddr,
    remote: SocketAddr,
    state: u8,
    uid: u32,
}

/// Refuses a connection that a process of another user has opened to us.
///
/// # Errors
/// When it is of another user, or of nobody any more, or does not come from this machine.
pub(super) fn check_caller(ours: SocketAddr, theirs: SocketAddr) -> io::Result<()> {
    let is_its = |socket: &Socket| socket.local == theirs && socket.remote == ours;
    check(theirs, "a process", is_its)
}

/// Refuses a connection to a port where a process of another user listens.
///
/// # Errors
/// When it is of another user, or nobody listens, or it is not on this machine.
pub(super) fn check_listener(theirs: SocketAddr) -> io::Result<()> {
    let is_its = |socket: &Socket| {
        let is_there = socket.local.ip() == theirs.ip() || socket.local.ip().is_unspecified();
        socket.state == LISTENS && socket.local.port() == theirs.port() && is_there
    };
    check(theirs, "what listens there", is_its)
}

fn check(theirs: SocketAddr, what: &str, is_its: impl Fn(&Socket) -> bool) -> io::Result<()> {
    let refuse = |why: String| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    if !theirs.ip().to_canonical().is_loopback() {
        return refuse(format!("{theirs} is not on this machine: give credentials"));
    }
    let mut is_found = false;
    for table in TABLES {
        // A machine without IPv6 has no such table.
        let Ok(text) = std::fs::read_to_string(table) else { continue };
        for socket in text.lines().skip(1).filter_map(parse).filter(&is_its) {
            is_found = true;
            if socket.uid != ROOT && socket.uid != geteuid().as_raw() {
                return refuse(format!(
                    "{what} is of another user of this machine (uid {}): give credentials",
                    socket.uid
                ));
            }
        }
    }
    if is_found { Ok(()) } else { refuse(format!("{theirs} belongs to nobody any more")) }
}

/// Reads a line such as `0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000
/// 1000 0 12345 ...`.
fn parse(line: &str) -> Option<Socket> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let local = parse_address(words.next()?)?;
    let remote = parse_address(words.next()?)?;
    let state = u8::from_str_radix(words.next()?, 16).ok()?;
    let uid = words.nth(3)?.parse().ok()?;
    Some(Socket { local, remote, state, uid })
}

/// Reads an address in hexadecimal digits, in words of 32 bits as the machine stores them.
fn parse_address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let mut bytes = Vec::with_capacity(16);
    for at in (0..ip.len()).step_by(8) {
        let word = u32::from_str_radix(ip.get(at..at + 8)?, 16).ok()?;
        bytes.extend_from_slice(&word.to_ne_bytes());
    }
    let ip = match <[u8; 4]>::try_from(bytes.as_slice()) {
        Ok(four) => IpAddr::V4(Ipv4Addr::from(four)),
        Err(_) => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(bytes.as_slice()).ok()?)),
    };
    Some(SocketAddr::new(ip.to_canonical(), u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn lines_of_the_kernel_are_read() {
        let line = "   1: 0100007F:67E8 0200007F:A2F4 01 00000000:00000000 00:00000000 00000000 \
                    1000        0 123 1 ffff 20 4 30 10 -1";
        let expected = Socket {
            local: "127.0.0.1:26600".parse().expect("an address"),
            remote: "127.0.0.2:41716".parse().expect("an address"),
            state: 1,
            uid: 1000,
        };
        assert_eq!(parse(line), Some(expected));
        let v6 = "00000000000000000000000001000000:0050";
        assert_eq!(parse_address(v6), Some("[::1]:80".parse().expect("an address")));
        assert_eq!(parse("sl local_address rem_address st"), None);
        assert_eq!(parse_address("0100:1"), None);
    }

    #[test]
    fn our_own_are_let_in_and_others_are_not() {
        for place in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(place) else { continue };
            let there = listener.local_addr().expect("it is bound");
            let client = TcpStream::connect(there).expect("somebody listens");
            let from = client.local_addr().expect("it is connected");
            check_caller(there, from).expect("it is ours");
            check_listener(there).expect("it is ours");
            drop((client, listener));
            check_listener(there).expect_err("nobody listens any more");
        }
        let elsewhere = "192.0.2.1:80".parse().expect("an address");
        check_listener(elsewhere).expect_err("it is not on this machine");
    }
}
