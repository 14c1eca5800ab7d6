# Ports that have an M_Key from the start: opensm, which has it too, configures them. Who does not have it neither reads a port nor
# learns the key, and opensm gets a trap and represses it.
load mlx5_core && load mlx5_ib && load ib_uverbs && load ib_umad || return
key=0x1234567890abcdef
opensm -c /tmp/opensm.conf >/tmp/opensm.out 2>&1
sed -i -e "s/^m_key 0x.*/m_key $key/" -e 's/^m_key_protection_level .*/m_key_protection_level 2/' \
	-e 's/^sa_key 0x.*/sa_key 0x0fedcba987654321/' /tmp/opensm.conf
step "opensm's configuration" grep -E '^(m_key|m_key_protection_level|sa_key) ' /tmp/opensm.conf
opensm -F /tmp/opensm.conf -f /tmp/opensm.log >>/tmp/opensm.out 2>&1 &
manager=$!
if wait_for $limit all_ports_active 2; then pass "2 ports active"; else fail "a port is not active"; fi

other=$(($(cat /sys/class/infiniband/mlx5_1/ports/1/lid)))
step "smpquery with the key" smpquery -C mlx5_0 -y $key portinfo "$other" && expect "the LID of the other port" "^Lid:\.+$other\$"
if timeout 30 smpquery -C mlx5_0 portinfo "$other" >/tmp/step 2>&1; then fail "smpquery without the key: answered"; else pass "smpquery without the key"; fi
# The default of opensm's sa_key is 1.
timeout 30 saquery -C mlx5_0 --smkey 1 PIR >/tmp/step 2>&1
sed 's/^/#| /' /tmp/step
if grep -qi 1234567890abcdef /tmp/step; then fail "saquery shows the key"; else pass "saquery does not show the key"; fi

# Not repressed, it would come eight times, 1.07 s apart.
sleep 12
notices=$(grep -c 'num:256' /tmp/opensm.log)
if [ "$notices" -ge 1 ] && [ "$notices" -le 3 ]; then pass "the trap came and was repressed"; else fail "$notices notices of trap 256"; fi
kill -0 $manager || fail "opensm ended"
pair "messages between the two" mlx5_1 ibv_rc_pingpong -c -m 4096 -n 100 -s 65536
sed 's/^/#| /' /tmp/opensm.log | tail -n 40
