# Runs in the virtual machine: creates two software RoCE devices, each over a separate network interface.
# The interfaces are not connected: each device reaches only itself.
set -e

make() {
    ip link show "dummy$1" >/dev/null 2>&1 || ip link add "dummy$1" type dummy
    # The maximum MTU of RoCE, 4096 bytes, plus its headers.
    ip link set "dummy$1" mtu 4200
    ip address add "10.9.$1.1/24" dev "dummy$1"
    ip link set "dummy$1" up
    rdma link add "rxe$1" type rxe netdev "dummy$1"
}

ip link set lo up
make 0
make 1
# The kernel assigns the addresses of a device some time after its creation.
for device in rxe0 rxe1; do
    until grep -q ffff: /sys/class/infiniband/$device/ports/1/gids/*; do sleep 0.05; done
done
