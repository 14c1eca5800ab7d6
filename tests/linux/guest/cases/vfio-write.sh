# The examples of package bareverbs-vfio.
vfio_cards || return
step "write --listen" sh -c "write $card0 --listen >/tmp/listening 2>&1 & sleep 2; write $card1 localhost; wait; cat /tmp/listening"
expect "the peer has what was written" "the peer wrote: Hello over VFIO!"
step "events" events "$card0"
expect "every write interrupted" "write 9: Success"
