# python3 convert.py < download.csv > plants.ndjson
import csv, json
# Other encodings: cp1252 (Excel), mac-roman (Excel for Mac), utf-16 (Excel's Unicode text).
# Other delimiters: ';' and '\t'. Darwin Core archives: delimiter='\t', quoting=3
rows = csv.DictReader(open(0, encoding='utf-8-sig', newline=''), delimiter=',')
for number, row in enumerate(rows, 1):
    row = {column.strip(): cell for column, cell in row.items() if column}
    # The columns of your file. With a column of integers: 'id': int(row['Number'])
    plant = {'id': number, 'name': row['Scientific Name'], 'tag': row['Family']}
    # An empty tag is no tag.
    print(json.dumps({field: value for field, value in plant.items() if field != 'tag' or value}))
