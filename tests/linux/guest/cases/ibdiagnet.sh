# Tools that look for what is wrong in a subnet find nothing: a subnet manager has configured both ports of this guest.
load mlx5_core && load mlx5_ib && load ib_uverbs && load ib_umad || return
opensm >/tmp/opensm.out 2>&1 &
if wait_for $limit all_ports_active 2; then pass "both ports are active"; else fail "a port is not active"; fi

# tool NAME [PATTERN]: the command that follows in $@ is done without a complaint, and says a line like the pattern.
tool() {
	tool_name=$1
	tool_pattern=$2
	shift 2
	step "$tool_name" "$@"
	expect "$tool_name: what it says" "$tool_pattern"
	! grep -iE 'error|warn|fail|timed? ?out|mismatch' /tmp/step | grep -vE "$harmless" || fail "$tool_name: it complains"
}
# Words of tables and of summaries that count none.
harmless='[Ee]rrors? *(:|=|\.\.) *0|0 (bad|errors|ports)|[Ee]rror summary|have errors beyond threshold|[Cc]heck|Stage|STAGE|ErrorStat|Warnings Report'

mkdir -p /tmp/ibdiagnet
step "ibdiagnet" ibdiagnet -o /tmp/ibdiagnet -c 10 -i 1 -p 1
expect "ibdiagnet finds both" '2 nodes \(0 Switches & 2 CA-s\) discovered'
expect "ibdiagnet looks for bad links" '^-I- No bad Links .* were found'
# Its marks of warnings and errors. There is nothing to compare the subnet with, and the rate of the group for IP is what the
# manager takes without a configuration.
! grep -E '^-[WE]- ' /tmp/step | grep -vE 'Topology file is not specified|Suboptimal rate for group' || fail "ibdiagnet: warnings or errors"
tool "iblinkinfo" 'Active/ *LinkUp' iblinkinfo -C mlx5_0
tool "ibqueryerrors" '## Summary: 2 nodes checked, 0 bad nodes found' ibqueryerrors -C mlx5_0
tool "ibnetdiscover" '^Ca	1 ' ibnetdiscover -C mlx5_0
for lid in 1 2; do
	tool "smpquery of the partitions of LID $lid" '0: 0xffff 0x0000' smpquery -C mlx5_0 pkeys $lid
	tool "smpquery of those of its port" '0: 0xffff 0x0000' smpquery -C mlx5_0 pkeys $lid 1
	tool "smpquery of its virtual lanes" '# *SL2VL|VLCap|SL: *\| *0' smpquery -C mlx5_0 sl2vl $lid 1
	tool "ibtracert to LID $lid" 'To ca' ibtracert -C mlx5_0 1 $lid
done
tool "saquery of the nodes" 'node_guid\.*0x' saquery -C mlx5_0
tool "saquery of the paths" 'mtu\.+0x8' saquery -C mlx5_0 -p
tool "saquery of the partitions" '0x[fF]{4}' saquery -C mlx5_0 --smkey 1 PKTR
tool "saquery of the groups" 'MGID\.+ff12' saquery -C mlx5_0 -g
tool "sminfo" 'SMINFO_MASTER' sminfo -C mlx5_0
! grep -iE 'err|fail' /var/log/opensm.log | sed 's/^/#| /' | grep . || fail "opensm complains"
