# The examples of package bareverbs-vfio.
vfio_cards || return
step "write --listen" sh -c "write $card0 --listen >/tmp/listening 2>&1 & sleep 2; write $card1 localhost; wait; cat /tmp/listening"
expect "the peer has what was written" "the peer wrote: Hello over VFIO!"
step "events" events "$card0"
expect "every write interrupted" "write 9: Success"
step "iommu" iommu "$card0"
expect "only what is mapped can be registered" "a region beyond the buffer: .*no device address"
expect "the IOMMU refuses what the card is told to read" "reading where the IOMMU maps nothing: LocProtErr"
expect "the IOMMU refuses what the card is told to write" "writing where the IOMMU maps nothing: WrFlushErr"
expect "it is reported" "event: QpAccessError"
expect "a buffer is taken from the card when it is dropped" "writing to a buffer: Success; after it was dropped: WrFlushErr"
expect "the rest goes on" "writing within the buffer: Success, still here"
