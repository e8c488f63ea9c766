#!/bin/sh
# A machine with systemd as its first process, in namespaces: nothing outside of them is changed but
# the control group that it gets. tests/deploy/machine.py runs this, as root.
#
#   unshare --mount sh machine.sh root ROOT REPOSITORY GROUP WHEEL
#       makes a root out of this machine's: what is written to it goes to a tmpfs. Then installs what
#       INSTALL says (while there is a network), and goes on as
#   sh machine.sh init ROOT
#       in the other namespaces, as process 1; becomes systemd.
set -eu
stage=$1 root=$2
m=$root/machine

make_root() {
    repository=$1 wheel=$2
    mount --make-rprivate /
    mount -t tmpfs -o size=3g,mode=0755 kvkeep-machine "$root"
    mkdir "$root/upper" "$root/work" "$m"
    mount -t overlay -o "lowerdir=/,upperdir=$root/upper,workdir=$root/work" overlay "$m"
    mount -t tmpfs -o mode=1777 tmpfs "$m/tmp"
    mount -t tmpfs -o mode=0755 tmpfs "$m/run"
    mkdir -p "$m/repository" "$m/install/dist"
    mount --bind "$repository" "$m/repository"
    mount -o remount,bind,ro "$m/repository"
    cp "$wheel" "$m/install/dist/"
    cp -r "$repository/deploy" "$repository/docs" "$m/install/"
    make_devices
    leave_out
}

make_devices() {
    mount -t tmpfs -o mode=0755 tmpfs "$m/dev"
    for name in null zero full random urandom tty; do
        : >"$m/dev/$name"
        mount --bind "/dev/$name" "$m/dev/$name"
    done
    mkdir "$m/dev/pts" "$m/dev/shm"
    mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts "$m/dev/pts"
    mount -t tmpfs -o mode=1777 tmpfs "$m/dev/shm"
    ln -s pts/ptmx "$m/dev/ptmx"
    ln -s /proc/self/fd "$m/dev/fd"
    ln -s fd/0 "$m/dev/stdin"
    ln -s fd/1 "$m/dev/stdout"
    ln -s fd/2 "$m/dev/stderr"
}

# Nothing of this machine's own services, and nothing that would set up the kernel.
leave_out() {
    rm -rf "$m/etc/systemd/system" "$m/etc/systemd/system.conf.d" "$m/opt/kvkeep"
    mkdir -p "$m/etc/systemd/system"
    : >"$m/etc/fstab"
    : >"$m/etc/machine-id"
    for unit in modprobe@.service systemd-binfmt.service systemd-firstboot.service \
        systemd-hwdb-update.service systemd-journald-audit.socket systemd-modules-load.service \
        systemd-networkd.service systemd-pstore.service systemd-random-seed.service \
        systemd-remount-fs.service systemd-resolved.service systemd-sysctl.service \
        systemd-timesyncd.service systemd-udev-trigger.service systemd-udevd.service \
        systemd-udevd-control.socket systemd-udevd-kernel.socket systemd-logind.service \
        kmod-static-nodes.service dev-hugepages.mount dev-mqueue.mount getty.target \
        remote-fs.target proc-sys-fs-binfmt_misc.automount sys-fs-fuse-connections.mount \
        sys-kernel-config.mount sys-kernel-debug.mount sys-kernel-tracing.mount; do
        ln -s /dev/null "$m/etc/systemd/system/$unit"
    done
}

if [ "$stage" = root ]; then
    group=$4
    echo $$ >"$group/cgroup.procs"
    make_root "$3" "$5"
    mount -t proc proc "$m/proc"
    chroot "$m" /bin/sh -euc "cd /install; $INSTALL"
    umount "$m/proc"
    exec unshare --pid --fork --kill-child --cgroup --uts --ipc --net sh "$0" init "$root"
fi

mount -t sysfs -o ro,nosuid,nodev,noexec sysfs "$m/sys"
mount -t cgroup2 cgroup2 "$m/sys/fs/cgroup"
mount -t proc proc "$m/proc"
mount --bind "$m/proc/sys" "$m/proc/sys"
mount -o remount,bind,ro "$m/proc/sys"
# These are of its own network.
mount --bind "$m/proc/sys/net" "$m/proc/sys/net"
mount -o remount,bind,rw "$m/proc/sys/net"
cd "$m"
mkdir before
pivot_root . before
umount -l /before
exec env -i container=kvkeep PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --log-target=journal --show-status=0 --unit=basic.target
