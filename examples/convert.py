# python3 convert.py < download.csv > plants.csv
import csv, sys
sys.stdout.reconfigure(encoding='utf-8')
# Other encodings: cp1252 (Excel), mac-roman (Excel for Mac), utf-16 (Excel's Unicode text).
# Other delimiters: ';' and '\t'. Darwin Core archives: delimiter='\t', quoting=3
rows = csv.DictReader(open(0, encoding='utf-8-sig'), delimiter=',')
plants = csv.writer(sys.stdout, lineterminator='\n')
plants.writerow(['id', 'name', 'tag'])
for number, row in enumerate(rows, 1):
    row = {column.strip(): cell for column, cell in row.items() if column}
    # The columns of your file. Without a column of integers, the number of the row is the id.
    plants.writerow([number, row['Scientific Name'], row['Family']])
