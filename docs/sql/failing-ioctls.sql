-- Which ioctls fail, under which driver, in how many ranks?
select r.driver, i.name, i.sub, i.status, count(*) as times, count(distinct i.rank) as ranks
from ioctls i join (select distinct run, rank, driver from runs) r on r.run = i.run and r.rank = i.rank
where i.failed
group by r.driver, i.name, i.sub, i.status
order by ranks, times desc;
