# Run in the machine: makes two devices of software RoCE, each over a network interface of its own.
# The interfaces lead nowhere: each device reaches itself.
set -e

make() {
    ip link show "dummy$1" >/dev/null 2>&1 || ip link add "dummy$1" type dummy
    # As much more than the greatest unit of RoCE, 4096 bytes, as its headers take.
    ip link set "dummy$1" mtu 4200
    ip address add "10.9.$1.1/24" dev "dummy$1"
    ip link set "dummy$1" up
    rdma link add "rxe$1" type rxe netdev "dummy$1"
}

ip link set lo up
make 0
make 1
# The kernel tells a device its addresses some time after it was made.
for device in rxe0 rxe1; do
    until grep -q ffff: /sys/class/infiniband/$device/ports/1/gids/*; do sleep 0.05; done
done
