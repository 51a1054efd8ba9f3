//! The peer descriptor: the identity and the addresses of a process, which every handle carries.

use std::net::IpAddr;

/// The first byte of a peer descriptor, which identifies its layout.
const VERSION: u8 = 1;

/// A unique random identifier, known to processes that have received a handle.
pub type Token = [u8; 16];

/// The addresses of a process, and the secret that authenticates clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerDescriptor {
    /// The id of the process.
    pub token: Token,
    /// The secret; a client that presents it has received a handle.
    pub secret: Token,
    /// The id of the running system and its network namespace. Two processes with the same id are
    /// on the same machine and can connect to each other's local sockets.
    pub boot: Token,
    /// The SHA-256 fingerprint of the owner's certificate, or zeros if it has none.
    pub fingerprint: [u8; 32],
    /// The port on which it listens, or 0 if it does not listen.
    pub port: u16,
    /// The addresses of its machine, the best one first.
    pub addresses: Vec<IpAddr>,
    /// The name of the process in messages.
    pub name: String,
}

impl PeerDescriptor {
    /// The name of its local socket in the abstract namespace.
    pub fn socket_name(&self) -> String {
        let digits: String = self.token.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("mesh-rdma-{digits}")
    }

    /// Encodes the descriptor for a handle.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        bytes.extend(self.token);
        bytes.extend(self.secret);
        bytes.extend(self.boot);
        bytes.extend(self.fingerprint);
        bytes.extend(self.port.to_le_bytes());
        bytes.push(u8::try_from(self.addresses.len()).unwrap_or(u8::MAX));
        for address in self.addresses.iter().take(usize::from(u8::MAX)) {
            match address {
                IpAddr::V4(four) => {
                    bytes.push(4);
                    bytes.extend(four.octets());
                }
                IpAddr::V6(six) => {
                    bytes.push(6);
                    bytes.extend(six.octets());
                }
            }
        }
        bytes.extend(self.name.as_bytes());
        bytes
    }

    /// Decodes a peer descriptor; `None` if the bytes are malformed.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes.strip_prefix(&[VERSION])?;
        let token = take(&mut rest)?;
        let secret = take(&mut rest)?;
        let boot = take(&mut rest)?;
        let fingerprint = take(&mut rest)?;
        let port = u16::from_le_bytes(take(&mut rest)?);
        let [count] = take(&mut rest)?;
        let addresses = (0..count).map(|_| take_address(&mut rest)).collect::<Option<Vec<_>>>()?;
        let name = String::from_utf8(rest.to_vec()).ok()?;
        Some(Self { token, secret, boot, fingerprint, port, addresses, name })
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, behind) = rest.split_first_chunk::<N>()?;
    *rest = behind;
    Some(*taken)
}

fn take_address(rest: &mut &[u8]) -> Option<IpAddr> {
    match take::<1>(rest)? {
        [4] => take::<4>(rest).map(IpAddr::from),
        [6] => take::<16>(rest).map(IpAddr::from),
        _ => None,
    }
}
