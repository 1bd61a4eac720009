package stock_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/stock"
)

// model implements the documented behaviour of stock on maps. Time is counted in minutes.
type model struct {
	now   int
	items map[string]*modelItem
}

type modelItem struct {
	stock.Counts
	name         string
	segments     int
	reservations map[string]*modelReservation
	changes      map[string]*stock.ChangeCommand
	after        map[string]int64 // stocked after changes
}

type modelReservation struct {
	quantity, unsold int64
	state            string
	life, expires    int // 0: none
}

func (r *modelReservation) line(no string) string {
	line := fmt.Sprintf("%s: %d %s", no, r.quantity, r.state)
	if r.unsold > 0 {
		line += fmt.Sprintf(", %d unsold", r.unsold)
	}
	return line
}

// expire ends the reservations whose time is over.
func (m *model) expire() {
	for _, i := range m.items {
		for _, r := range i.reservations {
			if r.state == stock.Reserved && r.expires <= m.now {
				r.state = stock.Expired
				i.Reserved -= r.quantity
				i.Available += r.quantity
			}
		}
	}
}

func (m *model) put(c *stock.PutItemCommand) string {
	i := m.items[c.Item]
	if i == nil {
		i = &modelItem{name: c.Label, segments: max(1, c.Segments), reservations: map[string]*modelReservation{},
			changes: map[string]*stock.ChangeCommand{}, after: map[string]int64{}}
		m.items[c.Item] = i
		return fmt.Sprintf("%s (%s): %s in %d", c.Item, i.name, line(i.Counts), i.segments)
	}
	if c.Segments > 0 && c.Segments < i.segments {
		return fmt.Sprintf("SEGMENTS_TOO_FEW segments=%d", i.segments)
	}
	same := c.Label == i.name && c.Segments <= i.segments
	i.name, i.segments = c.Label, max(i.segments, c.Segments)
	end := fmt.Sprintf("%s (%s): %s in %d", c.Item, i.name, line(i.Counts), i.segments)
	if same {
		end += ", existed"
	}
	return end
}

func (m *model) reserve(c *stock.ReserveCommand) string {
	i := m.items[c.Item]
	if i == nil {
		return "ITEM_NOT_FOUND"
	}
	life := int(c.Life / time.Minute)
	if r := i.reservations[c.ReservationNo]; r != nil {
		var differs []string
		switch {
		case r.quantity == 0:
			return "RESERVATION_ENDED state=" + r.state
		case (r.life == 0) != (life == 0):
			differs = append(differs, "call")
		case r.life != life:
			differs = append(differs, "life")
		}
		if r.quantity != c.Quantity && !slices.Contains(differs, "call") {
			differs = append(differs, "quantity")
		}
		if len(differs) > 0 {
			return "RESERVATION_EXISTS_DIFFERENT differs=" + strings.Join(differs, ",")
		}
		return r.line(c.ReservationNo) + ", existed"
	}
	if i.Available < c.Quantity {
		return fmt.Sprintf("OUT_OF_STOCK available=%d", i.Available)
	}
	r := &modelReservation{quantity: c.Quantity, state: stock.Sold, life: life}
	i.Available -= c.Quantity
	if life > 0 {
		r.state, r.expires = stock.Reserved, m.now+life
		i.Reserved += c.Quantity
	} else {
		i.Sold += c.Quantity
	}
	i.reservations[c.ReservationNo] = r
	return r.line(c.ReservationNo)
}

func (m *model) confirm(c *stock.ConfirmCommand) string {
	i := m.items[c.Item]
	if i == nil {
		return "ITEM_NOT_FOUND"
	}
	r := i.reservations[c.ReservationNo]
	switch {
	case r == nil:
		return "RESERVATION_NOT_FOUND"
	case r.state == stock.Sold:
		return r.line(c.ReservationNo) + ", existed"
	case r.state != stock.Reserved:
		return "RESERVATION_ENDED state=" + r.state
	}
	r.state = stock.Sold
	i.Reserved -= r.quantity
	i.Sold += r.quantity
	return r.line(c.ReservationNo)
}

func (m *model) cancel(c *stock.CancelCommand) string {
	i := m.items[c.Item]
	if i == nil {
		return "ITEM_NOT_FOUND"
	}
	r := i.reservations[c.ReservationNo]
	switch {
	case r == nil:
		r = &modelReservation{state: stock.Cancelled}
		i.reservations[c.ReservationNo] = r
		return r.line(c.ReservationNo)
	case r.state == stock.Sold:
		return "RESERVATION_ENDED state=sold"
	case r.state != stock.Reserved:
		return r.line(c.ReservationNo) + ", existed"
	}
	r.state = stock.Cancelled
	i.Reserved -= r.quantity
	i.Available += r.quantity
	return r.line(c.ReservationNo)
}

func (m *model) change(c *stock.ChangeCommand) string {
	i := m.items[c.Item]
	if i == nil {
		return "ITEM_NOT_FOUND"
	}
	if first := i.changes[c.ChangeNo]; first != nil {
		var differs []string
		if first.Quantity != c.Quantity {
			differs = append(differs, "quantity")
		}
		if first.ReservationNo != c.ReservationNo {
			differs = append(differs, "reservation_no")
		}
		if first.Kind != c.Kind {
			differs = []string{"call"}
		}
		if len(differs) > 0 {
			return "CHANGE_EXISTS_DIFFERENT differs=" + strings.Join(differs, ",")
		}
		return fmt.Sprintf("%s: %s %d of %d, existed", c.ChangeNo, c.Kind, c.Quantity, i.after[c.ChangeNo])
	}
	if c.Kind == stock.Unsell {
		r := i.reservations[c.ReservationNo]
		switch {
		case r == nil:
			return "RESERVATION_NOT_FOUND"
		case r.state != stock.Sold:
			return "RESERVATION_NOT_SOLD state=" + r.state
		case r.unsold+c.Quantity > r.quantity:
			return fmt.Sprintf("UNSELL_EXCEEDS_SOLD remaining=%d", r.quantity-r.unsold)
		}
		r.unsold += c.Quantity
		i.Sold -= c.Quantity
	} else {
		if i.Available+c.Quantity < 0 {
			return fmt.Sprintf("STOCK_BELOW_PROMISED available=%d", i.Available)
		}
		i.Stocked += c.Quantity
	}
	i.Available += c.Quantity
	i.changes[c.ChangeNo], i.after[c.ChangeNo] = c, i.Stocked
	return fmt.Sprintf("%s: %s %d of %d", c.ChangeNo, c.Kind, c.Quantity, i.Stocked)
}

// rows are the items and reservations as text.
func (m *model) rows() (rows []string) {
	for name, i := range m.items {
		rows = append(rows, fmt.Sprintf("%s %s in %d", name, line(i.Counts), i.segments))
		for no, r := range i.reservations {
			rows = append(rows, name+" "+r.line(no))
		}
	}
	slices.Sort(rows)
	return rows
}

// TestStockBehavesLikeTheModel runs random commands, several in a batch and on two engines, time steps and expiries
// against the model.
func TestStockBehavesLikeTheModel(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	clock := pgtest.ShiftClock(t, db)
	s := shopOn(t, db)
	var plays, minutes atomic.Int32
	rapid.Check(t, func(r *rapid.T) {
		p := &play{T: r, shop: s, model: model{items: map[string]*modelItem{}}, caller: caller}
		p.caller.Tenant = 100 + plays.Add(1)
		r.Repeat(map[string]func(*rapid.T){
			"put":     p.put,
			"reserve": p.reserve,
			"sell":    p.reserve,
			"confirm": p.confirm,
			"cancel":  p.cancel,
			"change":  p.change,
			"commit":  func(*rapid.T) { p.commit() },
			"wait": func(r *rapid.T) {
				p.commit()
				n := rapid.IntRange(1, 40).Draw(r, "minutes")
				clock.Set(t, time.Duration(minutes.Add(int32(n)))*time.Minute)
				p.model.now += n
			},
			"scheduler": func(*rapid.T) {
				p.commit()
				p.compare()
			},
		})
		p.commit()
		p.compare()
	})
}

type play struct {
	*rapid.T
	shop    *shop
	caller  commit.Caller
	model   model
	waiting []waiting
}

// waiting is a command that waits for its batch, with the expected answer.
type waiting struct {
	command command
	model   func() string
}

func (p *play) add(c command, model func() string) { p.waiting = append(p.waiting, waiting{c, model}) }

var (
	someItems   = rapid.SampledFrom([]string{"tea", "tea", "tea", "milk"})
	someNumbers = rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f"})
	someUnits   = rapid.Int64Range(1, 7)
)

func (p *play) put(r *rapid.T) {
	c := &stock.PutItemCommand{Caller: p.caller, Item: someItems.Draw(r, "item"),
		Label:    rapid.SampledFrom([]string{"x", "y"}).Draw(r, "name"),
		Segments: rapid.SampledFrom([]int{0, 0, 1, 2, 3}).Draw(r, "segments")}
	p.add(c, func() string { return p.model.put(c) })
}

func (p *play) reserve(r *rapid.T) {
	c := &stock.ReserveCommand{Caller: p.caller, Item: someItems.Draw(r, "item"),
		ReservationNo: someNumbers.Draw(r, "no"),
		Quantity:      someUnits.Draw(r, "units"),
		Life:          time.Duration(rapid.SampledFrom([]int{0, 10, 10, 30}).Draw(r, "life")) * time.Minute}
	p.add(c, func() string { return p.model.reserve(c) })
}

func (p *play) confirm(r *rapid.T) {
	c := &stock.ConfirmCommand{Caller: p.caller, Item: someItems.Draw(r, "item"),
		ReservationNo: someNumbers.Draw(r, "no")}
	p.add(c, func() string { return p.model.confirm(c) })
}

func (p *play) cancel(r *rapid.T) {
	c := &stock.CancelCommand{Caller: p.caller, Item: someItems.Draw(r, "item"),
		ReservationNo: someNumbers.Draw(r, "no")}
	p.add(c, func() string { return p.model.cancel(c) })
}

func (p *play) change(r *rapid.T) {
	c := &stock.ChangeCommand{Caller: p.caller, Item: someItems.Draw(r, "item"),
		ChangeNo: someNumbers.Draw(r, "change"),
		Kind:     rapid.SampledFrom([]string{stock.Restock, stock.Restock, stock.Adjust, stock.Unsell}).Draw(r, "kind"),
		Quantity: someUnits.Draw(r, "units")}
	if c.Kind == stock.Unsell {
		c.ReservationNo = someNumbers.Draw(r, "no")
	}
	if c.Kind == stock.Adjust && rapid.Bool().Draw(r, "less") {
		c.Quantity = -c.Quantity
	}
	p.add(c, func() string { return p.model.change(c) })
}

// commit runs the waiting commands in one batch and compares the answers.
func (p *play) commit() {
	p.Helper()
	works := make([]flow.Submission, len(p.waiting))
	for i, w := range p.waiting {
		works[i] = submission(w.command)
		works[i].Tenant = p.caller.Tenant
	}
	p.model.expire()
	for i, r := range p.shop.engines[len(works)%2].DoAll(context.Background(), works) {
		if got, want := ended(r), p.waiting[i].model(); got != want {
			p.Fatalf("command %d of %d: %+v\n got %s\nwant %s", i, len(works), p.waiting[i].command, got, want)
		}
	}
	p.waiting = nil
}

// compare does the scheduler's work, and compares the rows with the model.
func (p *play) compare() {
	p.model.expire()
	for name := range p.model.items {
		work := submission(&stock.ExpireCommand{Item: stock.ItemKey{Tenant: p.caller.Tenant, Item: name}})
		work.Tenant = p.caller.Tenant
		if _, err := p.shop.engines[0].Do(context.Background(), work); err != nil {
			p.Fatal(err)
		}
	}
	got := p.shop.text(`select coalesce(string_agg(line, E'\n' order by line collate "C"), '') from (
		select format('%s %s/%s/%s/%s in %s', item, sum(available), sum(reserved), sum(sold), sum(stocked),
		count(*)) as line
		from stock_items where tenant_id = $1 group by item
		union all
		select format('%s %s: %s %s%s', item, reservation_no, quantity, state, case when unsold > 0 then
		', ' || unsold || ' unsold' end)
		from stock_reservations where tenant_id = $1) l`, p.caller.Tenant)
	if want := strings.Join(p.model.rows(), "\n"); got != want {
		p.Fatalf("rows\n%s\nwant\n%s", got, want)
	}
}
