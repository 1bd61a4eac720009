package load

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// subBits gives 128 buckets per octave: a bucket is narrower than 1 % of its values.
const (
	subBits = 7
	octaves = 28 // up to 2^35 microseconds, nine hours
	buckets = octaves<<subBits + 2<<subBits
)

// Histogram counts durations in microseconds, log-linearly. All callers share one: at benchmark rates its
// atomic counters cost less than merging a thousand histograms.
type Histogram struct {
	counts [buckets]atomic.Uint64
	max    atomic.Int64
}

func (h *Histogram) Add(d time.Duration) {
	h.counts[bucketOf(uint64(max(d.Microseconds(), 0)))].Add(1)
	for {
		old := h.max.Load()
		if int64(d) <= old || h.max.CompareAndSwap(old, int64(d)) {
			return
		}
	}
}

// bucketOf is exact below 256, then keeps the eight leading bits.
func bucketOf(us uint64) int {
	shift := bits.Len64(us) - (subBits + 1)
	if shift <= 0 {
		return int(us)
	}
	return min(shift<<subBits+int(us>>shift), buckets-1)
}

// topOf is the greatest value of a bucket.
func topOf(bucket int) uint64 {
	shift := bucket>>subBits - 1
	if shift <= 0 {
		return uint64(bucket)
	}
	return (uint64(bucket-shift<<subBits)+1)<<shift - 1
}

// Max is the exact maximum.
func (h *Histogram) Max() time.Duration { return time.Duration(h.max.Load()) }

// Quantile is the duration that the fraction q of all values does not exceed, at most 1 % too high. Zero for an
// empty histogram.
func (h *Histogram) Quantile(q float64) time.Duration {
	var total uint64
	for i := range h.counts {
		total += h.counts[i].Load()
	}
	if total == 0 {
		return 0
	}
	rank := uint64(q*float64(total) + 0.5)
	var seen uint64
	for i := range h.counts {
		if seen += h.counts[i].Load(); seen >= max(rank, 1) {
			return min(time.Duration(topOf(i))*time.Microsecond, h.Max())
		}
	}
	return h.Max()
}
