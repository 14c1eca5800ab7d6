# ibv_rc_pingpong against a firmware program, which has no TCP. The tool's TCP messages go through nc to this script, and from
# here through the host to the program's serial line. For tests/bare-metal/run.
load_mlx5 || return
size=$(parameter size 4096) iters=$(parameter iters 1000)
# An address as the tool sends it: text and a zero.
length=52

# came NUMBER: whether NUMBER bytes have come from the tool.
came() { [ "$(wc -c </tmp/from)" -ge "$1" ]; }

# talk_to_tool NC-OPTIONS...: starts nc between the tool and the files /tmp/from and (descriptor 3) /tmp/to.
talk_to_tool() {
	rm -f /tmp/to /tmp/from
	mkfifo /tmp/to
	: >/tmp/from
	nc "$@" </tmp/to >/tmp/from &
	exec 3>/tmp/to
}

# finish NAME: the ends of the tool and of the program.
finish() {
	wait $tool
	status=$?
	exec 3>&-
	sed 's/^/#| /' /tmp/step
	if [ $status -eq 0 ]; then pass "$1, Linux"; else fail "$1, Linux: exit status $status"; fi
	host end
	if [ "$host_said" = done ]; then pass "$1, firmware"; else fail "$1, firmware: $host_said"; fi
}

# The program is the client, Linux the server.
host boot
program=$host_said
timeout $limit ibv_rc_pingpong -d mlx5_0 -c -s $size -n $iters >/tmp/step 2>&1 &
tool=$!
wait_for 60 listening_or_ended $tool
talk_to_tool 127.0.0.1 18515
printf '%s\0' "$program" >&3
wait_for 60 came $length || fail "the server does not answer"
host connect client "$(head -c 51 /tmp/from)"
printf 'done\0' >&3
finish "Linux as the server"

# The program is the server, Linux the client.
host boot
program=$host_said
talk_to_tool -l -p 18515
wait_for 60 listening || fail "nc does not listen"
timeout $limit ibv_rc_pingpong -d mlx5_0 -c -s $size -n $iters 127.0.0.1 >/tmp/step 2>&1 &
tool=$!
wait_for 60 came $length || fail "the client does not speak"
host connect server "$(head -c 51 /tmp/from)"
printf '%s\0' "$program" >&3
finish "Linux as the client"
