# A machine without an IOMMU: refused, with the reason; also where VFIO is configured to do without.
load vfio_pci && load vfio_iommu_type1 || return
card=0000:01:00.0
echo vfio-pci >/sys/bus/pci/devices/$card/driver_override
echo $card >/sys/bus/pci/drivers_probe
step "devices" bareverbs devices
expect "the reason" "no IOMMU translates the DMA of $card"
expect "the remedy" "remedy: .*(IOMMU|VT-d|iommu)"
refused "info" 1 "no IOMMU translates the DMA of $card" bareverbs info --device $card
refused "the main job" 1 "no IOMMU translates the DMA of $card" bareverbs --device $card
refused "bind" 1 "no IOMMU" bareverbs bind $card
