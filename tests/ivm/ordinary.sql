select id, total from o where total > 10 and st in ('a', 'b')
select id, upper(st) as s, total * 2 as t from o
select distinct c from o
select distinct year(d) as y from o
select distinct c, st from o where total > 1
select c from o union select id from c
select c from o union all select id from c
select c from o intersect select id from c
select c from o except select id from c
select c from o except all select id from c
select id from o where exists (select 1 from l where l.ord = o.id)
select id from o where not exists (select 1 from l where l.ord = o.id)
select id from o where id in (select ord from l where qty > 1)
select id from o where id not in (select ord from l)
select id from o where c not in (select id from c)
select id from o where total > (select avg(total) from o)
select id from o where total = (select max(total) from o)
select id, total / (select sum(total) from o) as share from o
select id, (select max(qty) from l where l.ord = o.id) as m from o
select id, (select count(*) from l where l.ord = o.id) as n from o
select id from o where total > (select avg(i.total) from o i where i.c = o.c)
select o.id, m.x from o cross join (select max(total) as x from o) m
select o.id, o.total / m.x as share from o cross join (select sum(total) as x from o) m
select o.id, m.x from o, (select max(total) as x, min(total) as y from o) m where o.total < m.x
select o.id, m.n from o join (select count(*) as n from c) m on true
with m as (select max(total) as x from o) select o.id from o, m where o.total = m.x
with m as (select avg(total) as x from o) select id from o where total > (select x from m)
with a as (select c, sum(total) as s from o group by c) select c.name, a.s from a join c on c.id = a.c
with a as (select c, sum(total) as s from o group by c) select max(s) as x from a
with a as (select c, sum(total) as s from o group by c) select c from a where s > (select avg(s) from a)
with a as (select c, count(*) as n from o group by c) select n, count(*) as m from a group by n
select id, row_number() over (partition by c order by at, id) as r from o
select id, row_number() over (partition by year(d) order by id) as r from o
select id, rank() over (partition by c order by total) as r from o
select id, lag(total) over (partition by c order by at, id) as r from o
select id, sum(total) over (partition by c order by at, id) as r from o
select id, sum(total) over (partition by c) as r from o
select id, total / sum(total) over (partition by c) as r from o
select id, count(*) over (partition by c, st) as r from o
select id, max(total) over (partition by 1) as r from o
select id, sum(total) over () as r from o
select id, total / sum(total) over () as r from o
select id, avg(total) over (partition by 'x') as r from o
select id, row_number() over (order by id) as r from o
select id, rank() over (order by total desc) as r from o
select c, sum(total) as s, rank() over (order by sum(total) desc) as r from o group by c
select c, sum(total) as s, sum(sum(total)) over () as t from o group by c
select * from (select id, c, row_number() over (partition by c order by total desc, id) as r from o) where r <= 3
select id, c from o qualify row_number() over (partition by c order by total desc, id) = 1
select id, total from o order by total desc, id limit 10
select id, total from o order by total desc, id limit 10 offset 5
select c, sum(total) as s from o group by c order by s desc, c limit 5
select id, total from o order by total
select * from (select id, total from o order by total, id limit 5)
select c, sum(case when st = 'a' then total end) as a, sum(case when st = 'b' then total end) as b from o group by c
select * from (select c, st, total from o) pivot (sum(total) as s for st in ('a' as a, 'b' as b))
select c, st, sum(total) as s from o group by rollup (c, st)
select c, st, count(*) as n from o group by cube (c, st)
select c, st, max(total) as n from o group by grouping sets ((c), (st), ())
select c, st, avg(total) as n, grouping_id() as g from o group by grouping sets ((c, st), (c))
select c, sum(total) as s from o group by c having sum(total) > 100
select c, count(*) as n from o group by c having count(*) > 1 and max(total) < 10
select sum(total) as s from o having count(*) > 1
select count(*) as n from (select distinct c from o)
select count(*) as n from o join l on l.ord = o.id
select sum(l.qty * l.price) as s from o join l on l.ord = o.id where o.st = 'x'
select max(l.price) as s from o join l on l.ord = o.id
select c.city, p.kind, sum(l.qty) as q from o join c on c.id = o.c join l on l.ord = o.id join p on p.id = l.p group by c.city, p.kind
select c.name, o.id, l.n from c left join o on o.c = c.id left join l on l.ord = o.id
select c.name, count(o.id) as n from c left join o on o.c = c.id group by c.name
select c.id, coalesce(sum(o.total), 0) as s from c left join o on o.c = c.id group by c.id
select o.st, count(*) as n from c left join o on o.c = c.id group by o.st
select o.st, max(o.total) as n from c left join o on o.c = c.id group by o.st
select coalesce(o.c, c.id) as k, count(*) as n from o full join c on c.id = o.c group by coalesce(o.c, c.id)
select e.id, b.pay as boss from e left join e b on b.id = e.boss
select e.id from e join e b on b.id = e.boss where e.pay > b.pay
select dept, avg(pay) as a from e group by dept
select e.id from e join (select dept, avg(pay) as a from e group by dept) d on d.dept = e.dept where e.pay > d.a
select a.id as x, b.id as y from o a join o b on a.c = b.c and a.id < b.id
select a.id as x, b.id as y from o a join o b on a.total < b.total
select o.id, p.id as q from o join p on o.total between p.price and p.price + 10
select o.id, c.id as k from o cross join c
select id, x from o lateral view explode(split(st, ',')) as x
select x, count(*) as n from (select explode(split(st, ',')) as x from o) group by x
select id, d from o where d >= current_date - interval 7 days
select c, count(*) as n from o where at > now() - interval 1 hour group by c
select o.id, x.m from o, lateral (select max(price) as m from l where l.ord = o.id) x
select kind, count(*) as n from p where id in (select p from l) group by kind
select name from c where id in (select c from o group by c having sum(total) > 10)
select c.name from c where (select count(*) from o where o.c = c.id) > 2
select count(*) as n, (select count(*) from c) as m from o
select (select count(*) from o) as a, (select count(*) from c) as b
select (select max(total) from o) - (select min(total) from o) as span
select 'orders' as t, count(*) as n from o union all select 'lines', count(*) from l
select max(x) as m from (select max(total) as x from o union all select max(price) from l)
select st, count(distinct c) as n from o group by st
select st, count(distinct c) as n, sum(total) as s, count(distinct d) as k from o group by st
select count(distinct c, st) as n from o
select count(distinct c) as n, count(*) as m, max(total) as x from o
select round(sum(total), 1) as a, round(avg(total) * 2, 1) as b, count(*) + 1 as n from o
select if(count(*) > 0, sum(total), 0) as s from o
select greatest(max(total), 10) as x, least(min(total), 1) as y from o
select concat('n=', count(*)) as x from o
select c, round(sum(total) / count(*), 2) as x from o group by c
select c, date_format(max(at), 'yyyy') as y from o group by c
select year(max(d)) as y from o
select datediff(max(d), min(d)) as span from o
select cast(sum(total) as double) / nullif(count(*), 0) as x from o
select date_format(at, 'yyyy-MM') as m, count(distinct c) as n, max(total) as x from o group by date_format(at, 'yyyy-MM')
select distinct dayname(at) as w, second(at) as s from o
