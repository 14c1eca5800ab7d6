# Another case, whose programs were built with counters: the host gets what each program wrote at its end.
profiles=/profiles
mkdir -m 1777 $profiles
# Programs of one name share some files, also those of other users.
umask 0
export LLVM_PROFILE_FILE=$profiles/%4m.profraw
. "/cases/$(parameter profiled).sh"
if [ -z "$(ls $profiles)" ]; then
	fail "no program wrote a profile"
	return
fi
# Only now: the case finds the machine as it is without this.
load virtio_pci && load 9pnet_virtio && load 9p || return
mkdir /host
mount -t 9p -o trans=virtio,version=9p2000.L,msize=524288 share0 /host || fail "the folder of the host cannot be mounted"
for profile in "$profiles"/*; do
	cp "$profile" "/host/guest$(parameter guest)-$(basename "$profile")" || fail "$profile was not copied"
done
