#!/bin/busybox sh
# The first process of the machine. It prints one line per step to the console, ttyS0. Only the
# output of the job goes to ttyS1. machine.py reads both.
busybox=/bin/busybox

say() {
    read -r up_s _ </proc/uptime || up_s=?
    echo "machine: $* ($up_s s)"
}
end() { say "$@"; $busybox poweroff -f; }

$busybox mount -t proc proc /proc
$busybox mount -t sysfs sys /sys
$busybox mount -t devtmpfs dev /dev
for module in /modules/*; do
    $busybox insmod "$module" || end "failed: $module cannot be loaded"
done

# An overlay over the root of the host: changes are lost when the machine stops.
$busybox mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=524288 host /host ||
    end "failed: the files of the host cannot be mounted"
$busybox mount -t tmpfs own /own
$busybox mkdir /own/upper /own/work
$busybox mount -t overlay -o lowerdir=/host,upperdir=/own/upper,workdir=/own/work root /root ||
    end "failed: there is no root that can be written to"
for folder in sys dev; do $busybox mount --move /$folder /root/$folder; done
$busybox mount -t proc proc /root/proc
$busybox mkdir -p /root/run /root/dev/shm /root/dev/pts
$busybox mount -t tmpfs run /root/run
$busybox mount -t tmpfs shm /root/dev/shm
$busybox mount -t devpts pts /root/dev/pts
$busybox cp /job /devices /root/run/

# The host enforces the time limit; this stops the machine if the host fails to do so.
. /limit
(
    $busybox sleep "$limit_s"
    $busybox poweroff -f
) &

$busybox hostname localhost
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
$busybox chroot /root /bin/sh /run/devices || end "failed: the devices cannot be made"
say "ready"
$busybox stty -F /root/dev/ttyS1 raw
$busybox chroot /root /bin/sh /run/job <>/root/dev/ttyS1 >&0 2>&1
end "ended with $?"
