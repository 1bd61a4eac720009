package flow_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/order"
	"github.com/ledgerd/ledgerd/internal/sale"
	"github.com/ledgerd/ledgerd/internal/stock"
)

// fair implements the documented behaviour of sales and coupons on maps. Time is counted in minutes.
type fair struct {
	now       int
	items     map[string]shelf
	sales     map[string]terms
	orders    map[string]fairOrder
	units     map[string]string // order_no by unit of a buyer
	had       map[string]bool   // units of buyers that an order has or had
	coupons   map[string]fairCoupon
	campaigns map[string]string // code by campaign and owner
}

type shelf struct{ available, reserved, sold int }

// never is after all times.
const never = 1 << 40

// terms is the content of a sale. It is comparable.
type terms struct {
	item, campaign  string // campaign: empty for a sale of orders
	asset, amount   string
	machine         string
	within, life    int // minutes; 0: as the machine says, or the longest
	perBuyer        int32
	once            bool
	opensAt, closes int // never: it has no such time
}

// fairOrder is an order for one unit of an item, or for none.
type fairOrder struct {
	errand
	sale, state, cause string
	unit               int32
	once               bool
	until              int // when the timer fires; never: there is none
}

// errand is the content of an order. It is comparable.
type errand struct {
	subject, item, coupon, machine, amount string
	within                                 int
}

type fairCoupon struct {
	campaign, state, owner, cause, worth string
	expires                              int
}

func (f *fair) clone() *fair {
	c := *f
	c.items, c.sales, c.orders = maps.Clone(f.items), maps.Clone(f.sales), maps.Clone(f.orders)
	c.units, c.had = maps.Clone(f.units), maps.Clone(f.had)
	c.coupons, c.campaigns = maps.Clone(f.coupons), maps.Clone(f.campaigns)
	return &c
}

// pass ends everything whose time is over.
func (f *fair) pass() {
	for no, o := range f.orders {
		if o.until <= f.now {
			f.end(no, map[string]string{"order": "cancelled", "simple_order": "expired"}[o.machine], "timer")
		}
	}
	for code, c := range f.coupons {
		if (c.state == "unclaimed" || c.state == "claimed") && c.expires <= f.now {
			c.state, c.cause = "expired", "timer"
			f.coupons[code] = c
		}
	}
}

// end pays or cancels an order, with its parts.
func (f *fair) end(no, state, cause string) {
	o := f.orders[no]
	o.state, o.cause, o.until = state, cause, never
	f.orders[no] = o
	s := f.items[o.item]
	if s.reserved--; state == "paid" {
		s.sold++
	} else {
		s.available++
	}
	if o.item != "" {
		f.items[o.item] = s
	}
	if key := unitKey(o.sale, o.subject, o.unit); state != "paid" && f.units[key] == no && !o.once {
		delete(f.units, key)
	}
	c, ok := f.coupons[o.coupon]
	switch {
	case !ok || c.state != "locked" || c.cause != no:
		return
	case state == "paid":
		c.state = "used"
	case c.expires <= f.now:
		c.state, c.cause = "expired", "timer"
	default:
		c.state = "claimed"
	}
	f.coupons[o.coupon] = c
}

func unitKey(sale, buyer string, unit int32) string {
	return fmt.Sprintf(`["%s", "%s", "%d"]`, sale, buyer, unit)
}

func (f *fair) put(name string, t terms) string {
	_, ok := f.items[t.item]
	had, exists := f.sales[name]
	switch {
	case !ok:
		return "ITEM_NOT_FOUND"
	case t.campaign == "" && t.asset != "CNY":
		return "ASSET_NOT_FOUND"
	case t.campaign == "" && t.amount == "0.001":
		return "AMOUNT_TOO_PRECISE"
	case exists && (had.campaign == "") != (t.campaign == ""):
		return "FIELD_INVALID" // it would forget its winners
	case had == t:
		return "ok existed"
	}
	f.sales[name] = t
	return "ok"
}

func (f *fair) grab(name, buyer string, unit int32, no, code string) string {
	t, ok := f.sales[name]
	if !ok {
		return "SALE_NOT_FOUND"
	}
	if first, has := f.campaigns[t.campaign+" "+buyer]; has && t.campaign != "" {
		return "already " + first
	}
	key := unitKey(name, buyer, unit)
	if first, has := f.units[key]; has && t.campaign == "" {
		return "already " + f.describe(first)
	}
	s := f.items[t.item]
	switch {
	case unit > t.perBuyer:
		return "FIELD_INVALID"
	case t.opensAt != never && t.opensAt > f.now:
		return "not open"
	case t.closes <= f.now:
		return "over"
	case s.available == 0:
		return "sold out"
	}
	s.available--
	if t.campaign != "" {
		s.sold++
		f.items[t.item] = s
		expires := never
		if t.life > 0 {
			expires = f.now + t.life
		}
		f.coupons[code] = fairCoupon{campaign: t.campaign, state: "claimed", owner: buyer, cause: "claim",
			expires: expires}
		f.campaigns[t.campaign+" "+buyer] = code
		return "won " + code
	}
	s.reserved++
	f.items[t.item] = s
	for f.orders[no].state != "" {
		no += "'"
	}
	f.units[key], f.had[key] = no, true
	f.order(no, fairOrder{errand: errand{subject: buyer, item: t.item, machine: t.machine, amount: t.amount,
		within: t.within}, sale: name,
		unit: unit, once: t.once})
	return "won " + f.describe(no)
}

// order stores an order whose unit is reserved and whose coupon is locked.
func (f *fair) order(no string, o fairOrder) {
	o.state, o.cause, o.until = map[string]string{"order": "awaiting_payment", "simple_order": "pending"}[o.machine],
		"creation", f.now+30
	if o.within > 0 {
		o.until = f.now + o.within
	}
	if f.orders[no] = o; o.amount == "0" {
		f.end(no, "paid", "balance")
	}
}

// describe describes an order as the answer of a grab does.
func (f *fair) describe(no string) string {
	o := f.orders[no]
	if o.until != never {
		return no + " " + o.state + " in time"
	}
	return no + " " + o.state
}

func (f *fair) create(no string, w errand) string {
	if o, ok := f.orders[no]; ok {
		if o.errand != w || o.sale != "" {
			return "ORDER_EXISTS_DIFFERENT"
		}
		return no + " " + o.state + " existed"
	}
	if w.item != "" {
		s := f.items[w.item]
		if s.available == 0 {
			return "OUT_OF_STOCK"
		}
		s.available, s.reserved = s.available-1, s.reserved+1
		f.items[w.item] = s
	}
	if w.coupon != "" {
		if end := f.use(w.coupon, w.subject, "locked", no); refusal(end) {
			return end
		}
	}
	f.order(no, fairOrder{errand: w})
	return no + " " + f.orders[no].state
}

// move pays an order, or cancels it.
func (f *fair) move(no, to, cause string) string {
	o, ok := f.orders[no]
	if to == "cancelled" && o.state == "expired" {
		to = "expired"
	}
	switch {
	case !ok:
		return "ORDER_NOT_FOUND"
	case o.state == to && o.cause == cause:
		return no + " " + to + " existed"
	case o.state == to:
		return "STATE_TAKEN"
	case o.until == never:
		return "MOVE_NOT_ALLOWED"
	}
	f.end(no, to, cause)
	return no + " " + to
}

func (f *fair) issue(campaign string, codes []string, expires int, worth string) string {
	existed := 0
	for _, code := range codes {
		c, ok := f.coupons[code]
		if !ok {
			continue
		}
		if existed++; c.campaign != campaign || c.worth != worth || c.expires != expires {
			return "COUPON_EXISTS_DIFFERENT"
		}
	}
	switch {
	case existed == len(codes):
		return "issued " + strings.Join(codes, ",") + " existed"
	case existed > 0:
		return "COUPON_EXISTS_DIFFERENT"
	case expires <= f.now:
		return "FIELD_INVALID"
	}
	for _, code := range codes {
		f.coupons[code] = fairCoupon{campaign: campaign, state: "unclaimed", cause: "creation", worth: worth,
			expires: expires}
	}
	return "issued " + strings.Join(codes, ",")
}

func (f *fair) claim(code, owner string) string {
	c, ok := f.coupons[code]
	key := c.campaign + " " + owner
	switch {
	case !ok:
		return "COUPON_NOT_FOUND"
	case c.owner == owner:
		return c.describe(code) + " existed"
	case c.owner != "":
		return "COUPON_TAKEN"
	case c.state == "expired":
		return "COUPON_EXPIRED"
	case f.campaigns[key] != "":
		return "COUPON_OWNED"
	}
	c.state, c.owner, c.cause = "claimed", owner, "claim"
	f.coupons[code], f.campaigns[key] = c, code
	return c.describe(code)
}

func (c fairCoupon) describe(code string) string {
	return strings.Join([]string{code, c.state, c.owner, c.cause}, " ")
}

// use locks a coupon for an order, or uses it.
func (f *fair) use(code, owner, to, cause string) string {
	c, ok := f.coupons[code]
	switch {
	case !ok:
		return "COUPON_NOT_FOUND"
	case c.owner != "" && c.owner != owner:
		return "COUPON_TAKEN"
	case c.state == "expired":
		return "COUPON_EXPIRED"
	case c.state == "unclaimed":
		return "COUPON_UNCLAIMED"
	case to == "used" && c.state == "used" && c.cause == cause:
		return c.describe(code) + " existed"
	case c.state == "locked" || c.state == "used":
		return "STATE_TAKEN"
	}
	c.state, c.cause = to, cause
	f.coupons[code] = c
	return c.describe(code)
}

// rows are all rows as text.
func (f *fair) rows() (rows []string) {
	for no, o := range f.orders {
		rows = append(rows, fmt.Sprintf("%s %s %s %s %s %d", no, o.state, o.cause, o.subject, o.sale, o.unit))
		if o.sale != "" {
			rows = append(rows, fmt.Sprintf("sale order %s %s", no, o.item))
		}
	}
	for code, c := range f.coupons {
		rows = append(rows, c.campaign+" "+c.describe(code)+" "+c.worth)
	}
	for key, no := range f.units {
		rows = append(rows, "sale.unit "+key+" "+no)
	}
	for key, code := range f.campaigns {
		campaign, owner, _ := strings.Cut(key, " ")
		rows = append(rows, fmt.Sprintf(`coupon.campaign ["%s", "%s"] %s`, campaign, owner, code))
	}
	for name, s := range f.items {
		rows = append(rows, fmt.Sprintf("%s %d %d %d", name, s.available, s.reserved, s.sold))
	}
	for name, t := range f.sales {
		rows = append(rows, fmt.Sprintf("sale %s %s %s %d %t", name, t.item, t.campaign, t.perBuyer, t.once))
	}
	slices.Sort(rows)
	return rows
}

// fairCommand is a command with its outcome in the model, and the units whose orders it may look up.
type fairCommand struct {
	command flow.Command
	end     func(*fair) string
	units   []string
	got     string
}

// replay returns the model after commands, or nil if their outcomes in the model differ. A grab of a unit that an order
// had before may run in its place, or, after the look-up of that order, in a later batch.
func (f *fair) replay(todo, later []fairCommand, batches int, sales string) *fair {
	if len(todo) == 0 {
		if len(later) == 0 || batches == 0 {
			return map[bool]*fair{true: f}[len(later) == 0 && f.hasSales(sales)]
		}
		return f.replay(later, nil, batches-1, sales)
	}
	c, next := todo[0], f.clone()
	if end := c.end(next); end == c.got {
		if refusal(end) {
			next = f
		}
		if after := next.replay(todo[1:], later, batches, sales); after != nil {
			return after
		}
	}
	if slices.ContainsFunc(c.units, func(key string) bool { return f.had[key] }) {
		return f.replay(todo[1:], append(slices.Clone(later), c), batches, sales)
	}
	return nil
}

// hasSales reports whether the model has the sales of the rows, and the items of their orders: changes of one sale, and
// a grab beside them, may have the same outcomes in either order.
func (f *fair) hasSales(rows string) bool {
	own := slices.DeleteFunc(f.rows(), func(line string) bool { return !strings.HasPrefix(line, "sale ") })
	return strings.Join(own, "\n") == rows
}

// fairPlay runs random commands on sales and coupons, in a tenant of its own.
type fairPlay struct {
	*rapid.T
	market  *market
	caller  commit.Caller
	fair    *fair
	base    time.Time // the minute 0
	made    int
	errands map[string]errand  // the last one of each order_no
	puts    map[string]terms   // the last ones of each sale
	issues  map[string]fairBag // the last one with each first code
	waiting []fairCommand
}

// fairBag is an issue of coupons.
type fairBag struct {
	campaign, worth string
	codes           []string
	expires         int
}

var (
	someSales     = rapid.SampledFrom([]string{"noon", "night", "noon", "lot"})
	somePeople    = rapid.SampledFrom([]string{"ann", "bob", "cid"})
	someCampaigns = rapid.SampledFrom([]string{"spring", "autumn"})
	someCodes     = rapid.SampledFrom([]string{"A", "B", "C", "D", "E", "F"})
	someCauses    = rapid.SampledFrom([]string{"till", "a", "b", "c"})
	someNumbers   = rapid.SampledFrom([]string{"a", "b", "c"})
)

func (p *fairPlay) begin() {
	all := together{flow.Ledger(&ledger.CreateAssetsCommand{Caller: p.caller,
		Assets: []ledger.NewAsset{{Code: "CNY", Scale: 2}}})}
	for item, segments := range map[string]int{"tea": 1, "milk": 3} {
		all = append(all, flow.Stock(&stock.PutItemCommand{Caller: p.caller, Item: item, Segments: segments}),
			p.restock(item, 2))
	}
	p.waiting = []fairCommand{{command: all, end: func(*fair) string { return "ok; ok; ok; ok; ok" }}}
	p.commit()
}

func (p *fairPlay) restock(item string, n int64) flow.Command {
	p.made++
	return flow.Stock(&stock.ChangeCommand{Caller: p.caller, Item: item, ChangeNo: fmt.Sprint(p.made),
		Kind: stock.Restock, Quantity: n})
}

// at is a time as the service has it; zero: none.
func (p *fairPlay) at(minute int) time.Time {
	if minute == never {
		return time.Time{}
	}
	return p.base.Add(time.Duration(minute) * time.Minute)
}

// any returns random commands. Most are single ones.
func (p *fairPlay) any(r *rapid.T) []fairCommand {
	switch rapid.SampledFrom([]string{"put", "grab", "grab", "grab", "many", "pay", "cancel", "create", "create again",
		"issue", "issue again",
		"claim", "claim", "redeem", "redeem", "more"}).Draw(r, "kind") {
	case "put":
		return []fairCommand{p.put(r)}
	case "grab":
		return []fairCommand{p.grab(r, someSales.Draw(r, "sale"))}
	case "many":
		return p.many(r)
	case "pay":
		return []fairCommand{p.move(p.someOrder(r), "paid", rapid.SampledFrom([]string{"p", "q"}).Draw(r, "cause"))}
	case "cancel":
		return []fairCommand{p.move(p.someOrder(r), "cancelled", "c")}
	case "create":
		return []fairCommand{p.create(someNumbers.Draw(r, "order"), errand{subject: somePeople.Draw(r, "subject"),
			item: rapid.SampledFrom([]string{"", "", "tea"}).Draw(r, "item"), coupon: p.someCoupon(r),
			machine: p.someMachine(r),
			amount:  rapid.SampledFrom([]string{"5", "5", "0"}).Draw(r, "amount"),
			within:  rapid.SampledFrom([]int{0, 10, 45}).Draw(r, "within")})}
	case "create again":
		no := someNumbers.Draw(r, "order")
		if w, ok := p.errands[no]; ok {
			return []fairCommand{p.create(no, w)}
		}
		return []fairCommand{p.move(no, "paid", "p")}
	case "issue":
		first := someCodes.Draw(r, "code")
		bag := fairBag{campaign: someCampaigns.Draw(r, "campaign"),
			worth: rapid.SampledFrom([]string{"", "", "10"}).Draw(r, "worth"),
			codes: []string{first}, expires: never}
		if second := someCodes.Draw(r, "second"); second != first {
			bag.codes = append(bag.codes, second)
		}
		if n := rapid.SampledFrom([]int{0, 8, 20, 45, -3}).Draw(r, "life"); n != 0 {
			bag.expires = p.fair.now + n
		}
		return []fairCommand{p.issue(bag)}
	case "issue again":
		if bag, ok := p.issues[someCodes.Draw(r, "code")]; ok {
			return []fairCommand{p.issue(bag)}
		}
		return []fairCommand{p.claim(p.someCoupon(r), somePeople.Draw(r, "owner"))}
	case "claim":
		return []fairCommand{p.claim(p.someCoupon(r), somePeople.Draw(r, "owner"))}
	case "redeem":
		code, owner, cause := p.someCoupon(r), somePeople.Draw(r, "owner"), someCauses.Draw(r, "cause")
		return []fairCommand{{command: &flow.RedeemCoupon{Caller: p.caller, Code: code, Owner: owner, Cause: cause},
			end: func(f *fair) string { return f.use(code, owner, "used", cause) }}}
	default:
		item := someItems.Draw(r, "item")
		return []fairCommand{{command: p.restock(item, 1), end: func(f *fair) string {
			s := f.items[item]
			s.available++
			f.items[item] = s
			return "ok"
		}}}
	}
}

func (p *fairPlay) someMachine(r *rapid.T) string {
	return rapid.SampledFrom([]string{"order", "order", "simple_order"}).Draw(r, "machine")
}

// someOrder draws an existing order, or a number that callers choose.
func (p *fairPlay) someOrder(r *rapid.T) string {
	return rapid.SampledFrom(append(slices.Sorted(maps.Keys(p.fair.orders)), "a", "b", "c")).Draw(r, "order")
}

// someCoupon draws an existing coupon, or a code that can be issued.
func (p *fairPlay) someCoupon(r *rapid.T) string {
	return rapid.SampledFrom(append(slices.Sorted(maps.Keys(p.fair.coupons)), "A", "B")).Draw(r, "coupon")
}

// put creates a sale, repeats it, or changes it.
func (p *fairPlay) put(r *rapid.T) fairCommand {
	name := someSales.Draw(r, "sale")
	t, ok := p.puts[name]
	if !ok || rapid.Bool().Draw(r, "new") {
		t = terms{item: rapid.SampledFrom([]string{"tea", "milk", "tea", "milk", "none"}).Draw(r, "item"), asset: "CNY",
			perBuyer: 1,
			opensAt:  never, closes: never}
	}
	switch rapid.SampledFrom([]string{"terms", "hours", "coupons", "again", "bad"}).Draw(r, "change") {
	case "terms":
		t.campaign, t.life, t.machine = "", 0, p.someMachine(r)
		t.amount, t.within = rapid.SampledFrom([]string{"5", "5", "0"}).Draw(r, "amount"),
			rapid.SampledFrom([]int{0, 10, 45}).Draw(r, "within")
		t.perBuyer, t.once = rapid.SampledFrom([]int32{1, 2}).Draw(r, "units"), rapid.Bool().Draw(r, "once")
	case "hours":
		t.opensAt = rapid.SampledFrom([]int{never, p.fair.now, p.fair.now + 5}).Draw(r, "opens")
		t.closes = rapid.SampledFrom([]int{never, p.fair.now + 6, p.fair.now + 30}).Draw(r, "closes")
	case "coupons":
		t.campaign, t.life = someCampaigns.Draw(r, "campaign"), rapid.SampledFrom([]int{0, 8, 40}).Draw(r, "life")
		t.amount, t.machine, t.within, t.perBuyer, t.once = "", "", 0, 1, false
	case "bad":
		t.campaign, t.machine, t.amount, t.life = "", "order", "0.001", 0
		t.asset = rapid.SampledFrom([]string{"CNY", "XXX"}).Draw(r, "asset")
	}
	if t.campaign == "" && t.machine == "" {
		t.machine, t.amount = "order", "5"
	}
	s := sale.Sale{Item: t.item, PerBuyer: t.perBuyer, Once: t.once, OpensAt: p.at(t.opensAt), ClosesAt: p.at(t.closes)}
	if t.campaign != "" {
		s.Coupon = &sale.Coupon{Campaign: t.campaign, Life: time.Duration(t.life) * time.Minute}
	} else {
		s.Order = &sale.Order{Asset: t.asset, Amount: t.amount, PayWithin: time.Duration(t.within) * time.Minute,
			Machine: t.machine}
	}
	old, had := p.puts[name]
	if t.asset == "CNY" && t.amount != "0.001" && t.item != "none" &&
		(!had || (old.campaign == "") == (t.campaign == "")) {
		p.puts[name] = t
	}
	return fairCommand{command: &flow.PutSale{Caller: p.caller,
		Named: sale.Named{Key: sale.Key{Tenant: p.caller.Tenant, Sale: name}, Sale: s}},
		end: func(f *fair) string { return f.put(name, t) }}
}

func (p *fairPlay) grab(r *rapid.T, name string) fairCommand {
	buyer, unit := somePeople.Draw(r, "buyer"), rapid.SampledFrom([]int32{1, 1, 1, 2, 3}).Draw(r, "unit")
	p.made++
	code, no := fmt.Sprint("k", p.made), fmt.Sprint("n", p.made)
	if rapid.IntRange(0, 5).Draw(r, "number") == 0 {
		no = someNumbers.Draw(r, "number")
	}
	other := no
	c := &flow.Grab{Caller: p.caller, Sale: name, Buyer: buyer, Unit: unit, OrderNo: no, Code: code,
		Renumber: func() (string, error) { other += "'"; return other, nil }}
	return fairCommand{command: c, end: func(f *fair) string { return f.grab(name, buyer, unit, no, code) },
		units: []string{unitKey(name, buyer, unit)}}
}

// many are the grabs of a GrabMany.
func (p *fairPlay) many(r *rapid.T) (all []fairCommand) {
	name := someSales.Draw(r, "sale")
	for range rapid.IntRange(2, 5).Draw(r, "grabs") {
		all = append(all, p.grab(r, name))
	}
	return all
}

func (p *fairPlay) move(no, to, cause string) fairCommand {
	c := &flow.MoveOrder{Caller: p.caller, OrderNo: no, Cancel: to == "cancelled",
		Params: machine.MoveParams{To: to, Cause: cause}}
	return fairCommand{command: c, end: func(f *fair) string { return f.move(no, to, cause) }}
}

func (p *fairPlay) create(no string, w errand) fairCommand {
	p.errands[no] = w
	c := &flow.CreateOrder{Caller: p.caller, OrderNo: no,
		Facts: order.Facts{Machine: w.machine, Subject: w.subject, Asset: "CNY",
			Amount: dec(w.amount), PayWithin: time.Duration(w.within) * time.Minute, Coupon: w.coupon}}
	if w.item != "" {
		c.Reserve, c.Lines = true, []order.Line{{Item: w.item, Quantity: 1}}
	}
	return fairCommand{command: c, end: func(f *fair) string { return f.create(no, w) }}
}

func (p *fairPlay) issue(bag fairBag) fairCommand {
	p.issues[bag.codes[0]] = bag
	c := &flow.IssueCoupons{Caller: p.caller, Campaign: bag.campaign, Codes: bag.codes, ExpiresAt: p.at(bag.expires)}
	if bag.worth != "" {
		c.Metadata = map[string]string{"off": bag.worth}
	}
	return fairCommand{command: c, end: func(f *fair) string {
		return f.issue(bag.campaign, bag.codes, bag.expires,
			bag.worth)
	}}
}

func (p *fairPlay) claim(code, owner string) fairCommand {
	return fairCommand{command: &flow.ClaimCoupon{Caller: p.caller, Code: code, Owner: owner},
		end: func(f *fair) string { return f.claim(code, owner) }}
}

// several returns a command of up to four commands.
func (p *fairPlay) several(r *rapid.T) (c fairCommand) {
	var all []fairCommand
	var commands together
	for range rapid.IntRange(2, 4).Draw(r, "several") {
		x := p.any(r)[0]
		all, commands, c.units = append(all, x), append(commands, x.command), append(c.units, x.units...)
	}
	c.command = commands
	c.end = func(f *fair) string {
		var ends []string
		for _, x := range all {
			end := x.end(f)
			if refusal(end) {
				return end
			}
			ends = append(ends, end)
		}
		return strings.Join(ends, "; ")
	}
	return c
}

// commit runs the waiting commands in one batch, and compares their outcomes.
func (p *fairPlay) commit() {
	p.Helper()
	works := make([]flow.Submission, len(p.waiting))
	for i, w := range p.waiting {
		works[i] = flow.Submission{Tenant: p.caller.Tenant, RequestID: "r", Rows: rowsOf(w.command), Bytes: 400,
			Command: w.command}
	}
	p.fair.pass()
	for i, r := range p.market.engines[len(works)%2].DoAll(context.Background(), works) {
		p.waiting[i].got = ordered(r)
	}
	after := p.fair.replay(p.waiting, nil, 8, p.market.text("select coalesce(string_agg(line, E'\\n' "+
		"order by line collate \"C\"), '') from ("+
		salesAsLines+") l", p.caller.Tenant))
	if after == nil {
		var lines strings.Builder
		next := p.fair.clone()
		for _, w := range p.waiting {
			saved := next.clone()
			end := w.end(next)
			if refusal(end) {
				next = saved
			}
			fmt.Fprintf(&lines, "%s %+v\n got %s\nwant %s\n", fmt.Sprintf("%T", w.command), w.command, w.got, end)
		}
		p.Fatalf("no order of the commands explains their ends\n%s", lines.String())
	}
	p.fair, p.waiting = after, nil
}

const salesAsLines = `select format('sale %s %s %s %s %s', sale, item, campaign, per_buyer, case when once then 'true'
	else 'false' end) as line
	from sale_sales where tenant_id = $1
	union all select format('sale order %s %s', order_no, lines #>> '{0,item}') from order_orders
	where tenant_id = $1 and sale is not null`

// compare does the scheduler's work, and compares the rows with the model.
func (p *fairPlay) compare() {
	p.commit()
	p.fair.pass()
	var works []flow.Command
	for no, o := range p.fair.orders {
		works = append(works, flow.Fire(&machine.FireCommand{Caller: p.caller,
			Key: machine.Key{Tenant: p.caller.Tenant, Machine: o.machine, Key: no}}))
	}
	for code := range p.fair.coupons {
		works = append(works, flow.Fire(&machine.FireCommand{Caller: p.caller,
			Key: machine.Key{Tenant: p.caller.Tenant, Machine: machine.CouponMachine, Key: code}}))
	}
	for item := range p.fair.items {
		works = append(works, flow.Stock(&stock.ExpireCommand{
			Item: stock.ItemKey{Tenant: p.caller.Tenant, Item: item}}))
	}
	for _, w := range works {
		if _, err := p.market.engines[0].Do(context.Background(),
			flow.Submission{Tenant: p.caller.Tenant, RequestID: "r", Rows: 2,
				Bytes: 400, Command: w}); err != nil {
			p.Fatal(err)
		}
	}
	got := p.market.text(`select coalesce(string_agg(line, E'\n' order by line collate "C"), '') from (
		select format('%s %s %s %s %s %s', o.order_no, i.state, i.cause, o.subject, o.sale, coalesce(o.sale_unit,
		0)) as line from order_orders o
			join machine_instances i on i.tenant_id = o.tenant_id and i.machine = o.machine and i.key = o.order_no
			where o.tenant_id = $1
		union all select format('%s %s %s %s %s %s', c.campaign, c.code, i.state, i.owner, i.cause,
		c.metadata ->> 'off') from coupon_coupons c
			join machine_instances i on i.tenant_id = c.tenant_id and i.machine = 'coupon' and i.key = c.code
			where c.tenant_id = $1
		union all select concat_ws(' ', scope, parts, result) from claim_keys where tenant_id = $1
		union all select concat_ws(' ', item, sum(available), sum(reserved), sum(sold)) from stock_items
		where tenant_id = $1 group by item
		union all `+salesAsLines+`) l`, p.caller.Tenant)
	if want := strings.Join(p.fair.rows(), "\n"); got != want {
		p.Fatalf("rows\n%s\nwant\n%s", got, want)
	}
}

// TestSalesAndCouponsMatchAModel runs random commands, alone and together, several in a batch and on two engines, and
// lets time pass.
func TestSalesAndCouponsMatchAModel(t *testing.T) {
	t.Parallel()
	m := newMarket(t)
	var plays, minutes atomic.Int32
	rapid.Check(t, func(r *rapid.T) {
		p := &fairPlay{T: r, market: m, caller: caller, errands: map[string]errand{}, puts: map[string]terms{},
			issues: map[string]fairBag{},
			base:   time.Now().Add(time.Duration(minutes.Load()) * time.Minute).Truncate(time.Microsecond).UTC()}
		p.fair = &fair{items: map[string]shelf{"tea": {available: 2}, "milk": {available: 2}},
			sales:  map[string]terms{},
			orders: map[string]fairOrder{}, units: map[string]string{}, had: map[string]bool{},
			coupons:   map[string]fairCoupon{},
			campaigns: map[string]string{}}
		p.caller.Tenant = 100 + plays.Add(1)
		p.begin()
		add := func(r *rapid.T) { p.waiting = append(p.waiting, p.any(r)...) }
		r.Repeat(map[string]func(*rapid.T){
			"one": add, "two": add, "three": add, "four": add,
			"several": func(r *rapid.T) { p.waiting = append(p.waiting, p.several(r)) },
			"commit":  func(*rapid.T) { p.commit() },
			"wait": func(r *rapid.T) {
				p.commit()
				n := rapid.SampledFrom([]int{1, 5, 6, 11, 29, 40}).Draw(r, "minutes")
				m.clock.Set(t, time.Duration(minutes.Add(int32(n)))*time.Minute)
				p.fair.now += n
			},
			"scheduler": func(*rapid.T) { p.compare() },
		})
		p.commit()
		p.compare()
	})
}
