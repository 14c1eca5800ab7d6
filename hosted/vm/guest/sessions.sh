# Further shells for the user (bareverbs vm shell): a connection of ssh comes at a virtio port of its own; the port "sessions" tells when,
# and when it is gone. What is here returns once the server of ssh is up.

virtio_port() {
	for name in /sys/class/virtio-ports/*/name; do
		[ "$(cat "$name" 2>/dev/null)" = "$1" ] && echo "/dev/$(basename "$(dirname "$name")")" && return
	done
}
last_session_port() { [ "$(virtio_port session7)" ] && [ "$(virtio_port sessions)" ]; }

# session NUMBER: one connection, until either end leaves.
session() {
	port=$(virtio_port "session$1")
	# Opened once, for both ways: a second time it would be busy.
	nc 127.0.0.1 22 0<>"$port" 1>&0 &
	echo $! >"/run/session$1"
	wait $!
	echo "ended $1" >&4
}

start_sessions() {
	load virtio_console || return
	if ! wait_for 60 last_session_port; then
		fail "no ports for further shells"
		return 1
	fi
	mount -t devpts devpts /dev/pts
	mkdir -p /etc/dropbear
	dropbearkey -t ed25519 -f /etc/dropbear/key >/dev/null 2>&1
	# Nobody outside of the guest reaches this address.
	sed -i 's,^root:[^:]*:0:0:[^:]*:[^:]*:,root::0:0:root:/tmp:,' /etc/passwd
	echo "export PS1='guest# '" >/etc/profile
	if ! dropbear -E -B -r /etc/dropbear/key -p 127.0.0.1:22 -P /run/dropbear.pid 2>/run/dropbear.log; then
		fail "the server of ssh: $(tail -n 1 /run/dropbear.log)"
		return 1
	fi
	sessions=$(virtio_port sessions)
	{
		exec 4>&3
		echo ready >&4
		while read -r word number <&3; do
			case $word in
			open)
				rm -f "/run/session$number"
				session "$number" &
				wait_for 60 test -s "/run/session$number"
				;;
			close) kill "$(cat "/run/session$number")" ;;
			esac
		done
	} 3<>"$sessions" </dev/null >/dev/null 2>&1 &
}
